"""The command lines of the recipes, made from their configuration objects."""
