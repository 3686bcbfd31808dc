"""What SkyRL's generators and trainers need of an engine and a configuration, without a GPU."""
