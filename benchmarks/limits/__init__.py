"""The barest loop over each store's statements."""
