"""Episodes become facts and rules: claim a batch, read it, check what is proposed, write it all or nothing."""
