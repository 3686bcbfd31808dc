"""Shared helpers of the tests of the verl adapter."""
