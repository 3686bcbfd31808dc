"""Sandboxes by Apptainer or Singularity, for machines without Docker and users without root."""
