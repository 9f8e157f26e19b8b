"""The page docs/curves/names.md, from the table of names.

python -m rl.trainers.logs.glossary > docs/curves/names.md

Tested in tests/rl/trainers/logs/test_names.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from rl.trainers.logs.names import ALIASES, TRAINERS, Alias
from rl.trainers.logs.run import COMPANIONS, EIGHT_CURVES, PHASES

PAGES = {
    **{curve: curve for curve in EIGHT_CURVES},
    **dict.fromkeys(("truncated_frac",), "response_length"),
}
"""Page of a curve beside this one; `companions` where it has none of its own."""

_COLUMNS = [trainer for trainer in TRAINERS if trainer != "generic"]

_INTRODUCTION = """\
# What other trainers call these curves

This page is generated from the table in `rl/trainers/logs/names.py`, which also reads their logs:
`python -m rl.trainers.logs.glossary > docs/curves/names.md`. A `*` stands for any text. Numbers in brackets lead to the
notes below: there, the trainer's definition differs from ours. Where a cell has several names, the first one that a log
has is used; phases are summed. An empty cell: the trainer does not log it.
"""

_TRAPS = """\
## Names that mislead

- **Clip ratio** means three things: the share of tokens where the clip of the loss is active (TRL
  `clip_ratio/region_mean`), the share of completions that are cut at the limit (TRL `completions/clipped_ratio`, verl
  `response_length/clip_ratio`), and the width of the clip itself (verl's setting `clip_ratio`).
- **KL** is to the reference in `kl`, to the policy that sampled in `approx_kl` (verl and slime `ppo_kl`), and between
  sampler and learner in `mismatch_kl`. k1 is signed; k3 never is.
- **Entropy loss** (`actor/entropy_loss`, `train/entropy_loss`, `entropy_loss`) is the entropy, not a loss.
- **Accuracy** of an evaluation is a mean reward in NeMo-RL. So are `eval_*_pass1` in OpenRLHF and `avg@k` in prime-rl.
- A **step** of TRL is one optimiser update: with `num_iterations=2` a rollout is two steps. slime counts rollouts
  from 0; verl did so in 2024.
- A **row** of TRL is the mean of `logging_steps` steps, but for `grad_norm` and `learning_rate`.
- **0** may mean that nothing was computed: NeMo-RL logs `kl_penalty` as 0 without a reference.
- verl's `training/rollout_probs_diff_*` are differences of probabilities, and NeMo-RL's `token_mult_prob_error` is a
  mean of exponentials: neither is `logp_diff_mean`.
"""


def page() -> str:
    """The page as Markdown."""
    notes: list[str] = []
    sections = [
        _INTRODUCTION,
        "## The eight curves\n\n" + _table(EIGHT_CURVES, notes),
        "## Companions\n\n" + _table(COMPANIONS, notes),
        "## Seconds of each phase\n\n" + _table([f"{phase}_seconds" for phase in PHASES], notes),
        "## Reward functions and evaluations\n\n" + _table(["rewards/*"], notes) + "\n" + _evaluations(notes),
        "## Notes\n\n" + "".join(f"{i}. {note}\n" for i, note in enumerate(notes, 1)),
        _TRAPS,
        "## Logs of any other program\n\n" + _generic(),
    ]
    return "\n".join(sections)


def _table(curves: Iterable[str], notes: list[str]) -> str:
    lines = [
        "| curve | " + " | ".join(TRAINERS[trainer] for trainer in _COLUMNS) + " |",
        "|---" * (len(_COLUMNS) + 1) + "|",
    ]
    for curve in curves:
        cells = [
            _cell([a for a in ALIASES if a.trainer == t and a.curve == curve and not a.evaluation], notes)
            for t in _COLUMNS
        ]
        lines.append(f"| {_link(curve)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _evaluations(notes: list[str]) -> str:
    lines = ["| evaluation of | " + " | ".join(TRAINERS[trainer] for trainer in _COLUMNS) + " |"]
    lines.append("|---" * (len(_COLUMNS) + 1) + "|")
    for curve in ("acc", "reward", "response_length"):
        cells = [
            _cell([a for a in ALIASES if a.trainer == t and a.curve == curve and a.evaluation], notes) for t in _COLUMNS
        ]
        lines.append(f"| {_link(curve)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(aliases: Iterable[Alias], notes: list[str]) -> str:
    return "<br>".join(f"`{alias.name}`{_mark(alias, notes)}" for alias in aliases)


def _mark(alias: Alias, notes: list[str]) -> str:
    if not alias.caveat:
        return ""
    note = f"{TRAINERS[alias.trainer]}: {alias.caveat}."
    if note not in notes:
        notes.append(note)
    return f" [{notes.index(note) + 1}]"


def _link(curve: str) -> str:
    if curve == "rewards/*":
        return "[`reward_NAME`](reward.md)"
    return f"[`{curve}`]({PAGES.get(curve, 'companions')}.md)"


def _generic() -> str:
    lines = [
        "Compared without regard to case, spaces and dots. The names of this page's first column are read as well.\n"
    ]
    by_curve: dict[str, list[str]] = {}
    for alias in ALIASES:
        if alias.trainer == "generic" and alias.curve and not alias.evaluation:
            by_curve.setdefault(alias.curve, []).append(f"`{alias.name}`")
    lines += ["| curve | names |", "|---|---|"]
    lines += [f"| `{curve}` | {', '.join(names)} |" for curve, names in by_curve.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
