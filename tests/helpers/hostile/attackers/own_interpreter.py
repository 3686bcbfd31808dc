#!/proc/self/exe
# pyright: basic
# The interpreter is the program that started this file. A Python reports its rights on its own program.
import posix as os

done = {}
try:
    done["exe"] = os.readlink("/proc/self/exe")
except OSError as exc:
    done["exe"] = str(exc)
status = os.stat("/proc/self/exe")
done["owner"] = status.st_uid


def attempt(name, *arguments):
    try:
        getattr(os, name)(*arguments)
        done[name] = "done"
    except OSError as exc:
        done[name] = exc.strerror


handle = os.open("/proc/self/exe", os.O_RDONLY)
attempt("fchmod", handle, status.st_mode & 0o7777)
attempt("chmod", "/proc/self/exe", status.st_mode & 0o7777)
attempt("chown", "/proc/self/exe", status.st_uid, status.st_gid)
attempt("setxattr", "/proc/self/exe", "user.attack", b"1")
attempt("open", "/proc/self/exe", os.O_RDWR)
report = os.open("/attack/report", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
os.write(report, str(done).replace("'", '"').encode())
os._exit(0)
