"""Pure decisions: everything here depends only on its arguments."""
