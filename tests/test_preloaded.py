"""What the preloaded server starts is what another process would be."""

import os
import signal
import subprocess
import sys
from typing import Any

import preloaded
import pytest

LINES = {
    "an exit status": "import sys; print(sys.argv); sys.exit(7)",
    "an error": "def f(): 1 / 0\nf()",
    "words as an exit status": "import sys; sys.exit('no')",
    "what runs at its end": "import atexit; atexit.register(print, 'end'); print('begin')",
    "another folder and variables": "import os; print(os.getcwd(), os.environ['SAID'])",
    "its parent": "import os; print(os.getppid())",
}


@pytest.mark.parametrize("what", LINES)
def test_it_ends_and_speaks_as_another_process(what: str, tmp_path: Any) -> None:
    how: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path}
    how["env"] = {**os.environ, "SAID": "so"}
    words = [sys.executable, "-c", LINES[what], "word"]
    one, other = preloaded.run(words, **how), subprocess.run(words, check=False, **how)
    assert (one.returncode, one.stdout, one.stderr) == (
        other.returncode,
        other.stdout,
        other.stderr,
    )


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(sign: signal.Signals) -> None:
    code = "import time; print('there', flush=True); time.sleep(60)"
    with preloaded.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1) as process:
        assert process.stdout.readline() == b"there\n"
        process.send_signal(sign)
        assert process.wait(20) == -sign


def test_variables_that_count_at_the_begin_get_a_process_of_their_own() -> None:
    code = "import sys; print(sys.flags.optimize, 'torch' in sys.modules)"
    env = {**os.environ, "PYTHONOPTIMIZE": "1"}
    done = preloaded.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["1", "False"]
