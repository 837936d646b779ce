"""What a log says around an error: where the program was, and how large things are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from oomph.doctor.lines import Line

_LINES_BEFORE, _LINES_AFTER = 400, 100
_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<name>[^\n]+))?'
    r"|File (?P<file2>[^\s\"]+?):(?P<line2>\d+), in (?P<name2>[\w.<>]+)"  # IPython 8
    r"|^(?P<file3>(?:~|/|[A-Z]:\\)[^\s(]+\.py|<ipython-input-[\w-]+>) in "  # IPython 7
    r"(?P<name3><cell line: \d+>|[\w<>]+)(?:\(|$)"
    r"|^(?P<file5>(?:Cell|Input) In ?\[\d+\])(?:, line (?P<line5>\d+))?"
    r"(?:, in (?P<name5><cell line: \d+>|[\w<>.]+))?"
    r"|^(?P<file4>(?:[A-Z]:)?[\w./\\~-]+\.py):(?P<line4>\d+)(?::| in )"  # pytest
    r"(?P<name4>\w*)"  # rich
)
_ESCAPED = re.compile(r"\\+n(?:\s*File |Traceback|  |\w*Error)")  # not C:\new.py
_ARROW = re.compile(r"-+> ?(\d+) (.*)|^❱ ?(\d+) (.*)|^> (\S.*)")
_START = re.compile(r"Traceback \(most recent call last\)")
_INNERMOST_FIRST = re.compile(r"Exception has occurred:")  # VS Code
_LOSS = re.compile(r"\bin (?:\w*cross_entropy\w*|log_softmax|nll_loss\w*)\b")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib(?:64)?[/\\]python\d|^torch[/\\]"
    r"|pytorch[/\\]torch[/\\]|<frozen|<string>|<eval_with_key>|torchinductor_"
    r"|[/\\]importlib[/\\]|[/\\]bin[/\\][\w-]+$|^threading\.py|^runpy\.py"
)
# Phases by what a frame's file, function or code shows; the first that fits counts.
_PHASES = (
    (
        "loading",
        r"\bin load_state_dict\b|torch[/\\]serialization",
    ),  # an optimizer's, too
    (
        "the optimizer's step",
        r"torch[/\\]optim[/\\]|optimizer\w*\.step\(|optim\.step\(",
    ),
    (
        "backward",
        r"\.backward\(|torch[/\\]autograd[/\\]|torch[/\\]_tensor\.py.*\bbackward"
        r"|_engine_run_backward|def backward|in backward\b|training_step_backward",
    ),
    (
        "loading",
        r"load_state_dict|from_pretrained|safetensors|load_model"
        r"|load_checkpoint|load_weights|in _apply\b|in convert\b"
        r"|model\w*\.(?:to|cuda)\(",
    ),
    (
        "evaluation",
        r"estimate_loss|\bin (?:\w*_)?(?:eval\w*|valid\w*|test\w*|predict\w*|infer\w*"
        r"|generate\w*|sample\w*)\b|no_grad|inference_mode|decorate_context",
    ),
    ("forward", r"\bin (?:_?forward\w*|_call_impl|__call__)\b|functional\.py"),
)
# Sizes that programs print or are given, by what they mean; in lower case.
_MEANINGS = {
    "batch": r"(?:per_device_)?(?:train_|eval_|micro_|val_)*batch_?size(?:_per_\w+)?"
    r"|samples_per_gpu|micro_batch_size_per_gpu|num_samples",
    "length": r"block_size|seq(?:uence)?_?len(?:gth)?|max_(?:seq_)?len(?:gth)?|n_ctx"
    r"|context_len(?:gth)?|max_position_embeddings|n_positions",
    "vocabulary": r"(?:padded_)?vocab(?:ulary)?_?size|n_vocab",
    "width": r"n_embd|hidden_size|d_model|embed_dim|embedding_dim|hidden_dim|n_embed",
    "heads": r"n_heads?|num_(?:attention_)?heads|nhead",
    "inner": r"intermediate_size|d_ff|ffn_dim|dim_feedforward|mlp_dim",
}
# A part of each of these names, which is found fast.
_NAME_PARTS = {
    "batch": ("batch", "samples"),
    "length": ("len", "block", "n_ctx", "n_pos", "max_pos"),
    "vocabulary": ("vocab",),
    "width": ("n_emb", "hidden", "d_model", "embed"),
    "heads": ("head",),
    "inner": ("intermediate", "d_ff", "ffn_dim", "feedforward", "mlp_dim"),
}
_SIZES = {
    name: re.compile(
        rf"(?<![a-z_])-{{0,2}}(?P<name>{words.replace('_', '[_ -]')})(?![a-z])[\"']?"
        r"(?: of [\w-]+ to|\s*(?:=|:|is|to|->)|\s)\s*[\"']?(?P<size>\d{1,7})(?![\d.])"
    )
    for name, words in _MEANINGS.items()
}
_SIZES_MAX = 8  # of one meaning
_LOOKS_MAX = 100  # at one part of a name, in a piece of the log
_SEEN = {
    "amp": ("autocast", "gradscaler", "mixed precision", "mixed_precision", "bf16"),
    "checkpointing": ("gradient_checkpointing", "utils/checkpoint", "utils.checkpoint"),
    "sharding": ("fully_shard", "fsdp", "zero_stage", "deepspeed"),
    "parallel": ("distributeddataparallel", "torchrun", "world_size"),
    "accumulation": ("gradient_accumulation", "grad_accum"),
    "summary": ("pytorch cuda memory summary", "max_memory_allocated"),
    "epoch": ("epoch",),
    "windows": (":\\users\\", "\\lib\\site-packages\\", "win32"),
    "graphs": ("reduce-overhead", "cudagraph"),
}
# The value that a name is given, and those that mean that it is not in use.
_VALUE = re.compile(r"\w*['\"]?(?:\s*[:=]|\s)\s*(\[\]|\{\}|''|\"\"|['\"]?[\w.+-]+)")
_OFF = {"false", "0", "none", "null", "no", "off", "[]", "{}", "''", '""'}
_OFF_OF = {"accumulation": {*_OFF, "1"}, "parallel": {*_OFF, "1"}}
_MENTIONS_MAX = 20  # of one name in a piece of the log
_EXPANDABLE = re.compile(
    r"expandable_segments['\"]?:\s?true(?!\W{0,20}t\W{0,4}o)"  # not PyTorch's advice
)


# Two lines of nvidia-smi's table: which GPU, and what of it is used.
_SMI = re.compile(
    r"^\|\s+(\d{1,3})\s+\S[^\n]*\|[^\n]*\n\|[^\n]*?\|\s*(\d+)mib\s*/\s*(\d+)mib\s*\|",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Place:
    """Where the program was.

    Attributes:
        line: The last line of its traceback that is not a library's; "": not known.
        phase: Such as ``backward``; "": not known.
        rank: Of the process, as a prefix of the traceback says; -1: not known.
        no_grad: A decorator such as ``torch.no_grad()`` is around the calls.
        repeated_at: The line that ends a traceback after the error, where it stands
            again; -1: there is none.
        in_loss: It was in the cross-entropy of logits.
        shapes: Lists of numbers near the error, that may be shapes of tensors.
    """

    line: str = ""
    phase: str = ""
    no_grad: bool = False
    in_loss: bool = False
    repeated_at: int = -1
    rank: int = -1
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass
class Traces:
    """What the whole log shows of the program.

    Attributes:
        sizes: By meaning, such as ``batch``: each name and size that is there.
        seen: Names of techniques that are in use, such as ``amp``: it mentions them,
            and gives them no value such as False.
        expandable_line: The first line that sets expandable segments; 0: none.
        gpus: What nvidia-smi shows as used and as total of each, in MiB.
    """

    sizes: dict[str, dict[int, str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    expandable_line: int = 0
    gpus: dict[int, tuple[int, int]] = field(default_factory=dict)

    def look_at(self, piece: str, number: int) -> None:
        """Takes in a piece of the log, whose first line has a number."""
        text = piece.lower()
        for meaning, parts in _NAME_PARTS.items():
            for part in parts:
                self._look_for_sizes(text, meaning, part)
        for name, words in _SEEN.items():
            if name not in self.seen and any(_in_use(text, name, w) for w in words):
                self.seen.add(name)
        if not self.expandable_line and "expandable_segments" in text:
            match = _EXPANDABLE.search(text)
            if match is not None:
                self.expandable_line = number + text.count("\n", 0, match.start())
        if "mib" in text:
            for gpu, used, total in _SMI.findall(text):
                self.gpus[int(gpu)] = int(used), int(total)

    def _look_for_sizes(self, text: str, meaning: str, part: str) -> None:
        known = self.sizes.setdefault(meaning, {})
        place = -1
        for _ in range(_LOOKS_MAX):
            place = text.find(part, place + 1)
            if place < 0 or len(known) >= _SIZES_MAX:
                return
            match = _SIZES[meaning].search(text, max(0, place - 30), place + 60)
            if match is not None and int(match["size"]) > 0:
                known.setdefault(int(match["size"]), match["name"])
                place = max(place, match.end() - 1)


def _in_use(text: str, name: str, word: str) -> bool:
    """Whether a text has a word, and does not say that it is off."""
    place = -1
    for _ in range(_MENTIONS_MAX):
        place = text.find(word, place + 1)
        if place < 0:
            return False
        value = _VALUE.match(text, place + len(word), place + len(word) + 60)
        off = _OFF_OF.get(name, _OFF)
        if value is None or value[1].strip("'\"") not in off | {""}:
            return True
    return False


def place_of(lines: list[Line], first: int, last: int) -> Place:
    """Where the program was when an error came that stands in some lines.

    Args:
        lines: With those before the error and some after it.
        first: The index of the line that the error starts in.
        last: Of the one that it ends in.
    """
    rank = lines[first].rank
    near = lines[max(0, first - _LINES_BEFORE) : first]
    if rank >= 0:
        near = [line for line in near if line.rank == rank]
    texts = _unescaped([line.text for line in near])
    inside = _unescaped([line.text for line in lines[first : last + 1]])
    later = lines[last + 1 : last + 1 + _LINES_AFTER]
    if rank >= 0:
        later = [line for line in later if line.rank == rank]
    after = [line.text for line in later]
    texts = _of_last_traceback([*texts, *inside])
    frames = _frames([*texts, *after[:3]])
    repeated_at = -1
    ends_one = bool(near) and near[-1].text[:1].isspace()
    if after and not ends_one and _START.search(after[0]):  # as loggers write it
        traceback = _traceback(after[1:])
        frames = _frames(traceback) or frames
        repeated_at = later[min(1 + len(traceback), len(later) - 1)].number
    if near and _INNERMOST_FIRST.search(near[-1].text):
        frames = _frames(_traceback(after))[::-1] or frames
    return Place(
        line=_users(frames),
        phase=_phase(frames),
        no_grad=any(frame.name == "decorate_context" for frame in frames),
        repeated_at=repeated_at,
        in_loss=any(_LOSS.search(str(frame)) for frame in frames[-3:]),
        rank=rank,
        shapes=_shapes(texts[-60:]),
    )


def _unescaped(texts: list[str]) -> list[str]:
    """Lines in place of lines that have others within them, as JSON does."""
    found = []
    for text in texts:
        if "\\n" in text and _ESCAPED.search(text):
            text = re.sub(r"\\+n", "\n", text)
            text = re.sub(r"\\+([\"'])", r"\1", text)
        found.extend(text.split("\n"))
    return found


def _traceback(texts: list[str]) -> list[str]:
    """The lines up to the first that is not indented, which names the exception."""
    ends = [i for i, text in enumerate(texts) if text[:1].strip()]
    return texts[: ends[0]] if ends else texts


def _of_last_traceback(texts: list[str]) -> list[str]:
    starts = [i for i, text in enumerate(texts) if _START.search(text)]
    return texts[starts[-1] :] if starts else texts[-60:]


@dataclass(frozen=True)
class _Frame:
    file: str
    line: str
    name: str
    code: str

    def __str__(self) -> str:
        return f"{self.file} in {self.name} : {self.code}"


def _frames(texts: list[str]) -> list[_Frame]:
    found = []
    for index, text in enumerate(texts):
        for match in _FRAME.finditer(text.strip()):
            groups = match.groupdict()
            file, line, name = (
                next((v for k, v in groups.items() if k.startswith(key) and v), "")
                for key in ("file", "line", "name")
            )
            code, arrow = _code(texts[index + 1 : index + 12])
            found.append(_Frame(file, line or arrow, name.strip(), code))
    return found


def _code(texts: list[str]) -> tuple[str, str]:
    """The line of code that a frame shows, and its number if it says that."""
    if texts and texts[0].strip() and not _ARROW.match(texts[0].strip()):
        first = texts[0].strip()
        if not re.match(r"\d+ |\d+$", first):
            return first, ""
    for text in texts:
        arrow = _ARROW.match(text.strip())
        if arrow is not None:
            return (arrow[2] or arrow[4] or arrow[5] or ""), arrow[1] or arrow[3] or ""
        if _FRAME.search(text.strip()):
            break
    return "", ""


def _users(frames: list[_Frame]) -> str:
    own = [frame for frame in frames if not _LIBRARY.search(frame.file)]
    if not own:
        return ""
    frame = own[-1]
    name = re.sub(r"\(.*", "", frame.name)
    where = f"{frame.file}:{frame.line}" if frame.line else frame.file
    return f"{where} ({name})" if name else where


def _phase(frames: list[_Frame]) -> str:
    shown = "\n".join(str(frame) for frame in frames)
    found = [phase for phase, pattern in _PHASES if re.search(pattern, shown)]
    return found[0] if found else ""


def _shapes(texts: list[str]) -> tuple[tuple[int, ...], ...]:
    """Lists of at least two numbers in brackets."""
    lists = re.findall(r"[\[(]((?:\d{1,9}, ?){1,6}\d{1,9}),?[\])]", "\n".join(texts))
    shapes = {tuple(int(n) for n in one.split(",")) for one in lists}
    return tuple(sorted(shapes))[:50]
