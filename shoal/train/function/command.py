"""Command lines as recipes: programs in any language, which print their scores."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from queue import Empty, Queue
from threading import Lock, Thread
from typing import IO, Any

from shoal.engine.printed import PrintedLog, study_of
from shoal.search.space import dimensions, is_domain
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.function.session import TrialContext, Values, report, restore

# Lines that a message shows of what a command printed, and their characters.
LAST, WIDTH = 3, 300
SCRIPT = 2**20  # bytes of a file that may be a script; programs and data are larger

FOLDER = "checkpoint"  # the placeholder of a trial's folder
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
# What runs text that it gets as code: after an option, or all that follows.
_SHELLS = r"(ba|da|a|z|k|mk|c|tc|fi|rba)?sh|python[\d.]*|perl|su|runuser|busybox"
_SHELL = re.compile(_SHELLS)
_INTERPRETER = re.compile(
    _SHELLS + r"|pypy[\d.]*|ruby|node|nodejs|bun|deno|php|lua|Rscript|R|julia|osascript|script"
    r"|flock|cmd(\.exe)?|powershell(\.exe)?|pwsh"
)
_WITH_NAMES = {"su", "runuser", "script", "flock", "busybox"}  # before their -c
_CODE = re.compile(r"-\w*[cCeEpr]|--(command|eval|print|session-command)|-[Cc]ommand|/[cCkK]|eval")
_WITH_WORD = {"-o", "-O", "+O", "+o", "-W", "-X", "--rcfile", "--init-file"}
_JOINERS = {"eval", "ssh", "rsh", "parallel", "watch", "sed", "awk", "gawk", "mawk"}
_BEFORE_PROGRAM = re.compile(
    r"env|exec|command|nohup|nice|ionice|time|timeout|stdbuf|setsid|taskset|numactl|sudo|srun"
    r"|mpirun|mpiexec|xargs|-.*|\w+=.*|\d+[smhd]?"
)
# A word that had to be quoted may be code of a program that nobody here knows.
_QUOTED = re.compile(r"[\s;&|<>`$()'\"\\]")
_PLAIN = re.compile(r"[\w.,:/@%+=~-]*")
_SWITCH = re.compile(r"--?[A-Za-z][\w-]*")
_PAIR = re.compile(r"([A-Za-z_][\w./-]*)=(\S+)")


class CommandRecipe(FunctionRecipe):
    """Trains by running a command line, whose words may hold {names} of the configuration."""

    def __init__(self, command: str) -> None:
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"the command {command!r} is none: {error}") from error
        if not self.words:
            raise ValueError("the command is empty: give a program and its arguments")
        super().__init__(command)
        self.folder = str(Path.cwd())

    @property
    def name(self) -> str:
        """The name of the first argument that is a file, else the program's."""
        files = [word for word in self.words[1:] if Path(self.folder, word).is_file()]
        return Path([*files, self.words[0]][0]).stem

    @property
    def sha256(self) -> str | None:
        """A hash of the scripts that the command names; None if it names none."""
        files = [Path(self.folder, word) for word in self.words]
        texts = [
            file.read_bytes() for file in files if file.is_file() and file.stat().st_size <= SCRIPT
        ]
        return hashlib.sha256(b"\0".join(texts)).hexdigest() if texts else None

    @property
    def placeholders(self) -> set[str]:
        """The names in braces, without the folder's."""
        return set(_PLACE.findall(" ".join(self.words))) - {FOLDER}

    def check(self, space: Mapping[str, Any] | None) -> None:
        """Raise ValueError if a placeholder and the space do not fit, or there is no program.

        Nor may a value become code, or an option that the space does not call a switch.
        """
        _check_code(self.words)
        program = self.words[0]
        if not _PLACE.search(program) and not shutil.which(program):
            raise ValueError(f"there is no program {program!r} to run")
        placeholders = self.placeholders
        if space is None and not placeholders:
            return
        space = space or {}
        for name in sorted(placeholders - space.keys()):
            raise ValueError(_unknown(name, [*space, FOLDER]))
        unused = sorted(space.keys() - placeholders - {"seed"})
        if unused:
            raise ValueError(
                f"the command does not use {', '.join(unused)} of the search space: write "
                + " ".join(f"{{{name}}}" for name in unused)
                + " where it belongs"
            )
        for name, domain in dimensions(space):
            if is_domain(domain):
                values = getattr(domain, "values", ())
            else:
                values = (domain,)
            for value in values:
                self.check_values({name: value})

    def check_values(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError if a value of a configuration cannot stand where the command has it."""
        for word in self.words:
            for name in _names(word) & config.keys():
                _check_filled(word, name, config[name])

    def run(self, context: TrialContext) -> None:
        """Run the command to its end; each line of scores is a report.

        Raises:
            RuntimeError: it failed, or printed no scores.
        """
        with _folder(context.scratch) as folder:
            _check_code(self.words)
            self.check_values(context.chosen)
            words = _arguments(self.words, context.chosen, folder)
            directory = self.folder if Path(self.folder).is_dir() else None
            variables = _variables(context, folder)
            process = TrialProcess(words, variables, directory, context.log)
            try:
                reports = _report_lines(process, folder)
                _check_end(process, reports or context.restored)
            finally:
                process.stop()


def _names(word: str) -> set[str]:
    """The names in braces that a configuration gives a value."""
    return set(_PLACE.findall(word)) - {FOLDER}


def _check_code(words: Sequence[str]) -> None:
    """Raise ValueError if a value would be run as code, or say which program runs."""
    code = set(_code_words(words))
    first = _program_index(words)
    for index, word in enumerate(words):
        names = sorted(_names(word))
        if not names:
            continue
        if index in code:
            raise ValueError(
                f"the command has {{{names[0]}}} within {word!r:.80}, which runs as code, and a "
                "value could be any code: pass it as an argument, as in "
                f"sh -c 'python t.py \"$1\"' sh {{{names[0]}}}, or by the environment, as in "
                f"env VALUE={{{names[0]}}} sh -c 'python t.py \"$VALUE\"'"
            )
        if index == first and _PLACE.match(word):
            raise ValueError(
                f"the value {{{names[0]}}} would say which program the command runs: name the "
                "program, and give it values as arguments"
            )


def _program_index(words: Sequence[str]) -> int:
    """The index of the program among the words, behind those that prepare for it, as env does."""
    for index, word in enumerate(words):
        if not _BEFORE_PROGRAM.fullmatch(Path(word).name):
            return index
    return 0


def _code_words(words: Sequence[str]) -> Iterator[int]:
    """The indices of the words that are run as code, as far as the programs are known."""
    first = _program_index(words)
    for index, word in enumerate(words):
        name = Path(word).name
        if name.startswith(("-S", "--split-string")) and index < first:  # of env
            yield from (index, index + 1)
        elif index == first and name in _JOINERS:
            yield from range(index + 1, len(words))
        elif index == first and _INTERPRETER.fullmatch(name):
            yield from _code_of(words, index, name not in _WITH_NAMES)
        elif _SHELL.fullmatch(name):
            yield from _code_of(words, index, False)


def _code_of(words: Sequence[str], program: int, options: bool) -> Iterator[int]:
    """The indices of the words that this interpreter runs as code.

    Its arguments begin with the first word that is no option, a file, or behind the code.
    `options`: whether its other options count as code, too.
    """
    before = ""
    for index in range(program + 1, len(words)):
        word = words[index]
        if _CODE.fullmatch(before):
            yield index
            if word != "--":
                return
            continue
        if word.startswith(("-", "+")) or before in _WITH_WORD:
            if options:
                yield index
        elif not _CODE.fullmatch(word) and Path(words[program]).name not in _WITH_NAMES:
            return
        before = word


def _check_filled(word: str, name: str, value: Any) -> None:
    """Raise ValueError if this value in this word is not what the command's author meant.

    Numbers can stand anywhere. A text may not bring what a shell acts upon into a word that had to
    be quoted, and begins no option unless it is a plain switch, such as --nesterov.
    """
    if isinstance(value, int | float):
        return
    text = str(value)
    if _QUOTED.search(_PLACE.sub("", word)) and not _PLAIN.fullmatch(text):
        raise ValueError(
            f"the value {text!r:.80} of {name} cannot stand within {word!r:.80}, which may be "
            f"code: make {{{name}}} an argument of its own, or leave out all but letters, digits "
            "and . , : / @ % + = ~ -"
        )
    option = text.startswith("-") and word.startswith(f"{{{name}}}")
    if option and not _SWITCH.fullmatch(text) and not _is_number(text):
        raise ValueError(
            f"the value {text!r:.80} of {name} would be taken for an option: write "
            f"--{name}={{{name}}} in the command, so that it is the value of one"
        )


def _is_number(text: str) -> bool:
    """Whether a text says a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _report_lines(process: TrialProcess, folder: Path) -> int:
    """Report what the process tells; returns how often it did."""
    reports = 0
    for line in process.lines():
        values = scores(line)
        if values is None:
            continue
        # Of several lines at once, the files belong to the last.
        current = process.pause()
        checkpoint = folder if current and any(folder.iterdir()) else None
        report(values, checkpoint=checkpoint)
        process.go_on()
        reports += 1
    return reports


def _check_end(process: TrialProcess, reported: int | bool) -> None:
    """Raise RuntimeError unless the process has ended well."""
    status = process.ended()
    log = process.log
    newest = "".join(log.newest)
    if status != 0:
        last = _last(log.errors or log.newest)
        raise RuntimeError(f"the command ended with {status}; {last}\n{newest}")
    if not reported:
        raise RuntimeError(
            "the command printed no scores: a line that holds name=number pairs and nothing else, "
            f"such as loss=0.3 accuracy=0.9, is a report; {_last(log.newest)}\n{newest}"
        )


def _last(lines: Iterable[str]) -> str:
    """The last few of the lines in one, for a message."""
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        return "it printed nothing"
    return f"it printed at last: {' | '.join(texts[-LAST:])[-WIDTH:]}"


def scores(line: str) -> Values | None:
    """The numbers of a line that consists of name=value pairs; None of other lines."""
    pairs = [_PAIR.fullmatch(word) for word in line.replace(",", " ").split()]
    values = {}
    for pair in pairs:
        if pair is None:
            return None
        try:
            values[pair[1]] = float(pair[2])
        except ValueError:
            return None
    return values or None


@contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    """The folder of a trial's checkpoint, with what the newest one held."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as path:
        folder = Path(path) / FOLDER
        folder.mkdir()
        former = restore()
        if former is not None:
            shutil.copytree(former, folder, dirs_exist_ok=True)
        yield folder


def _arguments(words: Iterable[str], config: Mapping[str, Any], folder: Path) -> list[str]:
    """The words with values in place of names; a name alone whose value is "" gives no argument."""
    arguments = []
    for word in words:
        filled = _filled(word, config, folder)
        if filled or not _PLACE.fullmatch(word):
            arguments.append(filled)
    return arguments


def _filled(word: str, config: Mapping[str, Any], folder: Path) -> str:
    """The word with values in place of names.

    Raises:
        ValueError: the configuration lacks a name.
    """
    values = {**config, FOLDER: folder}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ValueError(_unknown(match[1], list(values)))
        return str(values[match[1]])

    return _PLACE.sub(value, word)


def _unknown(name: str, known: list[str]) -> str:
    """What to say of a placeholder that nothing is known for."""
    near = get_close_matches(name, known, 1)
    hint = f"; did you mean {{{near[0]}}}?" if near else ""
    return (
        f"the command names {{{name}}}, which is no dimension of the search space "
        f"(known are {', '.join(known)}){hint}"
    )


def _variables(context: TrialContext, folder: Path) -> dict[str, str]:
    """The environment of a trial's process."""
    variables = dict(os.environ)
    variables.pop("SHOAL_RESTORED", None)
    variables |= {
        "PYTHONUNBUFFERED": "1",
        "SHOAL_CHECKPOINT": str(folder),
        "SHOAL_SEED": str(context.seed),
        "SHOAL_TRIAL": context.trial.id,
    }
    if context.restored:
        variables["SHOAL_RESTORED"] = "1"
    return variables


# Characters of a line that are read at once; lines that wait to be looked at; lines of an error.
LONGEST, WAITING, SHOWN = 65_536, 1_000, 20
# Seconds that a process may take to end; and those in which lines that it printed arrive.
GRACE, ARRIVAL = 5.0, 0.02

_POSIX = os.name == "posix"


class OutputLog:
    """What a process prints: in files, and the newest lines in memory."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else PrintedLog(path, study_of(path))
        self._lock = Lock()
        self.newest: deque[str] = deque(maxlen=SHOWN)
        self.errors: deque[str] = deque(maxlen=SHOWN)  # of them, those of its stderr

    def write(self, line: str, is_error: bool = False) -> None:
        """Append a line. `is_error`: it came on the standard error."""
        with self._lock:
            self.newest.append(line)
            if is_error:
                self.errors.append(line)
            if self._file is not None:
                with suppress(OSError):  # not worth a trial
                    self._file.write(line)
                self._file.close()


class TrialProcess:
    """A program at work, without a shell, in a process group of its own.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: str | None,
        log: Path | None,
    ) -> None:
        self.log = OutputLog(log)
        self._process = subprocess.Popen(
            list(words),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            process_group=0 if _POSIX else None,
        )
        self._lines: Queue[str | None] = Queue(WAITING)
        self._over = False
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        self._input = process.stdin.fileno()
        with suppress(AttributeError, OSError):
            os.set_blocking(self._input, False)
        self._readers = [
            Thread(target=self._read, args=(stream, is_output), daemon=True)
            for stream, is_output in ((process.stdout, True), (process.stderr, False))
        ]
        for reader in self._readers:
            reader.start()

    def lines(self) -> Iterator[str]:
        """The lines of the program's output as they come, up to its end."""
        while (line := self._lines.get()) is not None:
            yield line

    def ended(self) -> int:
        """Wait for the program's end; returns its exit status, or minus the number of a signal."""
        status: int = self._process.wait()
        for reader in self._readers:
            reader.join(GRACE)
        return status

    def pause(self) -> bool:
        """Have the program stand still, if that can be; returns whether no line is left to read."""
        self._signal("SIGSTOP")
        time.sleep(ARRIVAL)
        return self._lines.empty()

    def go_on(self) -> None:
        """Let the program run on after `pause`, with a line to read, which it may wait for."""
        with suppress(OSError):  # nobody reads them
            os.write(self._input, b"go\n")
        self._signal("SIGCONT")

    def stop(self) -> None:
        """End the program and what it started, politely at first."""
        if self._process.poll() is None:
            self._signal("SIGTERM")
            self._signal("SIGCONT")
            if not _POSIX:
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        self._signal("SIGKILL")
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._over = True
        with suppress(Empty):  # a reader may wait for room
            while True:
                self._lines.get_nowait()

    def _signal(self, name: str) -> None:
        """Signal all processes of the group, if there are any."""
        if _POSIX:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, getattr(signal, name))

    def _read(self, stream: IO[str], is_output: bool) -> None:
        """Log what comes on the stream; the output's lines go to `lines`, too."""
        with suppress(ValueError, OSError), stream:
            while line := stream.readline(LONGEST):
                self.log.write(line, is_error=not is_output)
                if is_output and not self._over:
                    self._lines.put(line)
        if is_output and not self._over:
            self._lines.put(None)
