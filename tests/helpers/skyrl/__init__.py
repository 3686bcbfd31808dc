"""An engine and a configuration for SkyRL's generators and trainers, without a GPU."""
