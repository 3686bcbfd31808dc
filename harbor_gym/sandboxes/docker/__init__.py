"""Harbor's Docker environment with an owner, a short start and a certain end."""
