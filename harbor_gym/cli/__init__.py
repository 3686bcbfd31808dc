"""The console command ``harbor-gym``."""
