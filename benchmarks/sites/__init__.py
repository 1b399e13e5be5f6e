"""Where each store keeps its databases."""
