"""What the preloaded server starts is what another process would be."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import one_cluster
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


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_a_worker_of_ray_begins_with_torch_loaded_and_ends_with_its_cluster() -> None:
    import ray

    @ray.remote(num_cpus=0)
    class Worker:
        def about(self) -> tuple[bool, str | None, str, int]:
            loaded = "torch" in sys.modules
            return loaded, os.environ.get("OMP_NUM_THREADS"), os.getcwd(), os.getpid()

    worker = Worker.remote()
    loaded, threads, folder, pid = ray.get(worker.about.remote())
    assert (loaded, threads, folder) == (True, os.environ["OMP_NUM_THREADS"], os.getcwd())
    assert pid != os.getpid()
    one_cluster.leave()
    assert not ray.is_initialized()
    end = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("context", "language", "plain"),
    [
        ("{}", "PYTHON", True),
        ('{"py_executable": "python3", "env_vars": {}}', "PYTHON", True),
        ('{"env_vars": {"A": "1"}}', "PYTHON", False),
        ("{}", "JAVA", False),
    ],
)
def test_workers_in_other_environments_are_rays_own(
    context: str, language: str, plain: bool
) -> None:
    words = ["w.py", f"{one_cluster.RUNTIME_ENV}{context}", f"{one_cluster.LANGUAGE}{language}"]
    assert one_cluster._is_plain(words) is plain
