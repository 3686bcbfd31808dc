"""What tests of the verl adapter share."""
