"""``python -m harbor_gym``: the same as the console command ``harbor-gym``."""

from harbor_gym.cli.entry import main

if __name__ == "__main__":
    main()
