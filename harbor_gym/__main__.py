"""``python -m harbor_gym``: the same as the console command ``harbor-gym``."""

import signal

from harbor_gym._runtime.interrupts import end_now

try:
    from harbor_gym.cli.entry import main
except ModuleNotFoundError:  # a wheel has the module under this name only, see pyproject.toml
    from harbor_gym_console import main

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is end_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # main has a handler of its own
    main()
