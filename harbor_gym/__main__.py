"""``python -m harbor_gym``: the same as the console command ``harbor-gym``."""

try:
    from harbor_gym.cli.entry import main
except ModuleNotFoundError:  # a wheel has the module under this name only, see pyproject.toml
    from harbor_gym_console import main

if __name__ == "__main__":
    main()
