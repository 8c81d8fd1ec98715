"""What can be tried of Windows elsewhere: imports without what it lacks, and calls of a fake kernel32.

Types are checked for it too (`mypy --platform win32` in scripts/check), and the kernels' object code
(scripts/windows_kernels.py). Nothing here is a run on Windows.
"""

import ctypes
import errno
import os
import subprocess
import sys

import pytest

from tinychat import files, machine, windows
from tinychat.file_lock import locked

# Everything is imported once, so that libraries of others are there; then only this package again, as on Windows.
IMPORT_ALL = """
import mmap, os, select, signal, socket, sys, time, types
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

package = Path(sys.argv[1])
files = sorted(package.rglob("*.py"))
names = [".".join(file.relative_to(package.parent).with_suffix("").parts) for file in files]
names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
# prompt_toolkit has another one there.
names.remove("tinychat.terminal.keyboard")
if find_spec("ray") is None:
    names.remove("tinychat.ray")
for name in names:
    import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "tinychat"]:
    del sys.modules[name]

LACKING = {
    os: '''
        sched_yield sched_getaffinity sched_setaffinity sched_setscheduler sched_param SCHED_OTHER SCHED_BATCH
        fork forkpty posix_fadvise posix_fallocate posix_spawn posix_spawnp register_at_fork wait wait3 wait4 waitid
        getuid geteuid getgid getegid getpgid getpgrp getgroups setuid setgid setsid killpg nice getpriority setpriority
        chown fchown fchmod mkfifo pread pwrite pipe2 sendfile statvfs sysconf getloadavg uname ttyname openpty ctermid
        O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_NOCTTY O_CLOEXEC O_SYNC WNOHANG
    ''',
    signal: '''
        SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGTSTP SIGCONT SIGSTOP SIGWINCH SIGPIPE SIGALRM SIGPROF SIGQUIT SIGCHLD SIGTTIN
        SIGTTOU SIG_BLOCK ITIMER_REAL ITIMER_PROF setitimer getitimer alarm pause sigwait pthread_sigmask pthread_kill
        sigpending siginterrupt
    ''',
    time: "CLOCK_MONOTONIC CLOCK_REALTIME clock_gettime pthread_getcpuclockid tzset",
    select: "poll epoll kqueue",
    socket: "AF_UNIX socketpair",
    mmap: "MADV_HUGEPAGE MADV_DONTNEED MADV_WILLNEED MAP_SHARED MAP_PRIVATE PROT_READ",
}
for module, lacking in LACKING.items():
    for name in lacking.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
os.supports_dir_fd.clear()
sys.platform = "win32"

for name in names:
    try:
        import_module(name)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def test_every_module_is_imported_without_what_windows_lacks():
    command = [sys.executable, "-c", IMPORT_ALL, os.path.dirname(files.__file__)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr[-2000:]) == ("", "")


class Kernel32:
    """Stands for kernel32.dll; `on_mains` is what it tells of the power, `console` the mode of its consoles."""

    def __init__(self):
        self.on_mains, self.console, self.priority = 0, None, None
        self.GetStdHandle = self._get_std_handle

    def GlobalMemoryStatusEx(self, status):
        if status._obj.size != 64:
            return 0
        status._obj.total, status._obj.available = 16 << 30, 5 << 30
        return 1

    def K32GetProcessMemoryInfo(self, process, counters, size):
        assert (process.value, size.value) == (2**64 - 1, 72)
        counters._obj.peak = 300 << 20
        return 1

    def DiscardVirtualMemory(self, address, length):
        self.discarded = (address.value, length.value)
        return 0

    def GetSystemPowerStatus(self, status):
        status._obj.on_mains = self.on_mains
        return 1

    def SetPriorityClass(self, process, priority):
        assert process.value == 2**64 - 1
        self.priority = priority.value
        return 1

    @staticmethod
    def _get_std_handle(number):
        return 100 - number.value

    def GetConsoleMode(self, handle, mode):
        if self.console is None or handle.value != 111:
            return 0
        mode._obj.value = self.console
        return 1

    def SetConsoleMode(self, handle, mode):
        self.console = mode.value
        return 1


class Handle:
    """A function whose type of result can be set."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *arguments):
        return self.call(*arguments)


@pytest.fixture
def kernel32(monkeypatch):
    library = Kernel32()
    library.GetStdHandle = Handle(library._get_std_handle)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: {"kernel32.dll": library}[name])
    return library


@pytest.fixture
def on_windows(kernel32, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    return kernel32


def test_pages_are_given_back(kernel32):
    windows.discard(8192, 4096)
    assert kernel32.discarded == (8192, 4096)


def test_memory_and_power(on_windows):
    assert machine.memory_bytes() == 16 << 30
    assert machine.available_memory_bytes() == 5 << 30
    assert windows.peak_bytes() == 300 << 20
    assert machine.is_on_battery()
    for on_mains in (1, 255):
        on_windows.on_mains = on_mains
        assert not machine.is_on_battery()
    assert machine.lower_priority()
    assert on_windows.priority == 0x4000


def test_a_console_draws_escape_codes_and_a_pipe_is_left_alone(kernel32):
    assert not windows.draw_escape_codes(1)
    kernel32.console = 3
    assert windows.draw_escape_codes(1)
    assert kernel32.console == 7
    assert not windows.draw_escape_codes(2)


def refusing(monkeypatch, name, times):
    """Let a function of `os` be refused so many times, as for a file that somebody has open; return the calls."""
    calls, real = [], getattr(os, name)

    def call(*arguments):
        calls.append(arguments)
        if len(calls) <= times:
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        return real(*arguments)

    monkeypatch.setattr(os, name, call)
    return calls


def test_a_file_that_is_being_read_is_replaced_when_the_reader_is_done(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("old")
    (tmp_path / "new").write_text("new")
    with monkeypatch.context() as patch:
        calls = refusing(patch, "replace", 3)
        with pytest.raises(PermissionError):
            files.replace(tmp_path / "new", tmp_path / "old")
        assert len(calls) == 1
        patch.setattr(sys, "platform", "win32")
        files.replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "new"


def test_a_reader_that_stays_is_an_error_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(files, "_RENAMING_SECONDS", 0.05)
    refusing(monkeypatch, "replace", 1000)
    with pytest.raises(PermissionError):
        files.replace(tmp_path / "new", tmp_path / "old")


def test_a_lock_file_is_gone_although_an_open_file_cannot_be_unlinked(tmp_path, monkeypatch):
    open_files, real_open, real_close, real_unlink = set(), os.open, os.close, os.unlink

    def opened(path, *arguments, **named):
        number = real_open(path, *arguments, **named)
        open_files.add((number, os.fspath(path)))
        return number

    def closed(number):
        open_files.difference_update([each for each in open_files if each[0] == number])
        real_close(number)

    def unlinked(path, **named):
        if any(os.fspath(path) == each for _, each in open_files):
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        real_unlink(path, **named)

    monkeypatch.setattr("tinychat.file_lock.try_lock", lambda number: True)
    for name, function in (("open", opened), ("close", closed), ("unlink", unlinked)):
        monkeypatch.setattr(os, name, function)
    monkeypatch.setattr(sys, "platform", "win32")
    with locked(tmp_path / "lock", waiting=lambda: None):
        assert (tmp_path / "lock").exists()
    monkeypatch.undo()
    assert not (tmp_path / "lock").exists()
