"""Harbor's Docker environment with an owner, a shorter start and a guaranteed removal."""
