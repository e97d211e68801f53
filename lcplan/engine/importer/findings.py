"""What an import may have to say about a text: a closed table of codes, each with its severity and sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lcplan.base.diagnostics import Diagnostic, Severity, Source

Code = Literal[
    "moving-tag",
    "no-tag",
    "image-by-id",
    "local-image",
    "secret-env",
    "secret-literal",
    "secret-on-command-line",
    "no-gpu-requested",
    "gpus-not-in-container",
    "ports-ignored-with-host-network",
    "published-port-differs-from-listen-port",
    "restart-policy",
    "liveness-probe-shorter-than-load",
    "env-file-not-read",
    "rocm",
    "partial-command",
    "not-openai-server",
    "unsupported-engine",
    "not-a-serving-command",
    "several-launches",
    "no-model",
    "elided-arguments",
    "flag-removed-in-later-versions",
    "env-removed-in-later-versions",
    "duplicate-flag",
    "duplicate-entrypoint",
    "bad-value",
    "unexpected-argument",
    "argument-contains-space",
    "glued-flags",
    "line-without-continuation-followed-by-flags",
    "whitespace-after-backslash",
    "trailing-backslash",
    "typographic-characters",
    "shell-loop",
    "conditional-assignment",
    "defaults-taken-from-shell-expansion",
    "extra-commands-before-launch",
    "unresolved-variable-may-hold-flags",
    "commented-out-command-ignored",
    "numactl-prefix",
    "unreadable-yaml",
    "text-too-large",
    "read-in-part",
    "yaml-read-in-part",
    "included-file-not-read",
]

# severity, sentence with {0} for the object, hint
TABLE: dict[Code, tuple[Severity, str, str]] = {
    "moving-tag": ("warning", "the image tag '{0}' holds no version number and may move", "pin a version or a digest"),
    "no-tag": ("warning", "the image '{0}' has no tag, so 'latest' is meant", "pin a version or a digest"),
    "image-by-id": ("warning", "the image is given by id, which only the host that built it knows", ""),
    "local-image": ("warning", "the image '{0}' has no public name", "it must exist on every node"),
    "secret-env": ("warning", "the environment variable {0} is a secret", "the recipe refers to it by name only"),
    "secret-literal": ("warning", "the text holds the value of the secret {0}", "revoke it; the value is not imported"),
    "secret-on-command-line": ("warning", "--{0} puts a secret on the command line", "the value is not imported"),
    "no-gpu-requested": ("warning", "the container asks for no GPU", ""),
    "gpus-not-in-container": (
        "error",
        "CUDA_VISIBLE_DEVICES={0} names GPUs that the container does not have: inside, they count from 0",
        "keep one of the two",
    ),
    "ports-ignored-with-host-network": ("warning", "published ports have no effect with host networking", ""),
    "published-port-differs-from-listen-port": (
        "warning",
        "container port {0} is published, and the engine listens on another one",
        "publish the engine's port or pass --port",
    ),
    "restart-policy": (
        "warning",
        "the restart policy '{0}' would start a failing engine again and again",
        "campaign runs leave it out",
    ),
    "liveness-probe-shorter-than-load": (
        "warning",
        "the liveness probe gives up after {0} s, before a large model is loaded",
        "use a startup probe",
    ),
    "env-file-not-read": ("warning", "the environment file {0} is not read", "add its variables to the recipe"),
    "rocm": ("note", "the text is about AMD GPUs (ROCm)", ""),
    "partial-command": ("note", "the head of the command is missing", ""),
    "not-openai-server": (
        "warning",
        "vllm.entrypoints.api_server is not the OpenAI-compatible server",
        "use vllm serve",
    ),
    "unsupported-engine": ("error", "this starts neither vLLM nor SGLang", "an 'openai' engine takes any command"),
    "not-a-serving-command": ("warning", "nothing in the text starts a server", ""),
    "several-launches": ("warning", "the text holds {0} launches; the first one is read", ""),
    "no-model": ("warning", "the text names no model", ""),
    "elided-arguments": ("warning", "some arguments are elided ('{0}')", ""),
    "flag-removed-in-later-versions": ("warning", "--{0} is gone in vLLM 0.31", ""),
    "env-removed-in-later-versions": ("warning", "the variable {0} is gone in vLLM 0.31", ""),
    "duplicate-flag": ("warning", "--{0} is given more than once", "the last one wins"),
    "duplicate-entrypoint": ("warning", "the program's name is repeated and the repetition dropped", ""),
    "bad-value": ("error", "{0}", ""),
    "unexpected-argument": ("warning", "the argument '{0}' belongs to no flag", ""),
    "argument-contains-space": ("warning", "one argument holds several words: '{0}'", "split it"),
    "glued-flags": ("warning", "two words are glued together before '{0}'", "put a blank between them"),
    "line-without-continuation-followed-by-flags": (
        "warning",
        "the line before '{0}' does not end in a backslash: the flags from there on never reach the engine",
        "add the backslash",
    ),
    "whitespace-after-backslash": ("warning", "blanks follow a backslash at the end of a line", "remove them"),
    "trailing-backslash": ("note", "a backslash continues the command into nothing", ""),
    "typographic-characters": ("warning", "typographic dashes or quotes were read as the plain ones", ""),
    "shell-loop": ("warning", "the launch stands in a loop ({0}) and is read once", ""),
    "conditional-assignment": ("warning", "{0} is set under a condition; the value taken may be another", ""),
    "defaults-taken-from-shell-expansion": ("note", "values were taken from defaults such as ${{A:-b}}", ""),
    "extra-commands-before-launch": ("warning", "the container runs other commands before the engine", ""),
    "unresolved-variable-may-hold-flags": ("warning", "{0} is not known and may hold further arguments", ""),
    "commented-out-command-ignored": ("note", "commented-out commands or flags are ignored", ""),
    "numactl-prefix": ("note", "numactl binds the process; in a recipe the quad does that", ""),
    "unreadable-yaml": ("error", "the text looks like YAML but is not: {0}", ""),
    "text-too-large": ("error", "the text is larger than {0}", "give the part that starts the server"),
    "read-in-part": (
        "warning",
        "the text is very long: what follows line {0} is not read",
        "give the part that starts the server",
    ),
    "yaml-read-in-part": (
        "warning",
        "of long YAML only {0} that name an engine are read",
        "give the part that starts the server",
    ),
    "included-file-not-read": ("warning", "the file {0}, which a service extends, is not read", "add what it says"),
}
# Codes whose JSON name carries the object they are about.
_WITH_OBJECT: frozenset[Code] = frozenset(
    (
        "flag-removed-in-later-versions",
        "env-removed-in-later-versions",
        "duplicate-flag",
        "shell-loop",
        "unresolved-variable-may-hold-flags",
        "env-file-not-read",
        "included-file-not-read",
    )
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its code, what it is about, and the line of the text (0: not known)."""

    code: Code
    about: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        """The name in the JSON form: `moving_tag`, `duplicate_flag:dtype`; an error starts with `ERROR`."""
        name = self.code.replace("-", "_")
        if self.code in _WITH_OBJECT and self.about:
            return f"{name}:{self.about}"
        return name

    @property
    def is_error(self) -> bool:
        """Whether the import fails because of it."""
        return TABLE[self.code][0] == "error"

    def diagnostic(self, file: str) -> Diagnostic:
        """Return it in the form that every command shows."""
        severity, sentence, hint = TABLE[self.code]
        return Diagnostic(severity, self.code, sentence.format(self.about), hint, Source(file, self.line))
