"""The front that agents talk to: tools over the Model Context Protocol."""
