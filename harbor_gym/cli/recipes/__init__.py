"""The command lines of the recipes, made from configuration objects."""
