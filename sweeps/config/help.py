"""The text of `python sweep.py --help`: commands and groups, read from `conf/`, and the keys that people type most.

Tested in tests/sweeps/config/test_files.py.
"""

from __future__ import annotations

from sweeps.config.overrides import COMMAND, groups, options, stage_commands

TYPED_MOST = {
    "dry_run=true": "print the plan and its cost; run and write nothing",
    "resume=auto|never|failed|SWEEP": "which sweep to resume; docs/commands/sweep.md",
    "paths.root=DIR": "where everything is written (default runs)",
    "model.path=PATH_OR_HUB_ID": "with model=hf: a folder, or for example Qwen/Qwen3-0.6B",
    "task.path=PATH": "with task=gsm8k: a .parquet or .jsonl file, or a folder with train and test",
    "algorithm.lr=1e-5": "learning rate",
    "algorithm.updates_per_rollout=2": "optimiser updates per rollout batch",
    "search.prompts_per_step=[8,16]": "trials over the prompts of a step",
    "search.group_size=[8]": "trials over G, the completions of a prompt",
    "search.lr_scaling=[hold,linear]": "trials over hold, sqrt, linear, clip_frac",
    "'search.space={KEY:[A,B]}'": "trials over any other key that can change a result; docs/search.md",
    "search.seeds=[0,1]": "every trial once per seed",
    "search.trials=N": "number of trials; a grid is repeated over further seeds until there are N",
    "search.pruning=asha|median": "end poor trials early, at evaluation.every_steps; docs/search.md",
    "stage.steps=N": "length of a trial",
    "'budget.sweep_limit=12.10 USD'": "the most that this sweep may cost",
    "'gate.force=\"reason\"'": "pass this stage's closed gate, with a reason",
    "'gate.start_anyway=\"reason\"'": "start without an open gate of the stage below, with a reason",
    "gate.acknowledge=read-XXXXXX": "start on more cards: confirms that the printed changes were read",
}

EXAMPLES = (
    "+stage=smoke model=tiny dry_run=true",
    "+stage=smoke trainer=simulated",
    "+stage=smoke machine=rtx4090 model=hf model.path=Qwen/Qwen3-0.6B task=gsm8k",
    "+stage=smoke search=random search.trials=8 'search.space.algorithm.lr={low:1e-6,high:1e-4,log:true}'",
    "+stage=single machine=rtx4090 model=hf model.path=Qwen/Qwen3-0.6B task=gsm8k",
    "+stage=multi search.cards_per_trial=1 machine=p5 machine.purchase=spot dry_run=true",
)


def help_text() -> str:
    """What `--help` prints."""
    width = max(map(len, TYPED_MOST))
    keys = "\n".join(f"  {key:{width}}  {text}" for key, text in TYPED_MOST.items())
    chosen = "\n".join(f"  {g:10} {', '.join(options(g))}" for g in groups() if g != "stage")
    examples = "\n".join(f"  {COMMAND} {e}" for e in EXAMPLES)
    return f"""Usage: {COMMAND} +stage=STAGE [GROUP=CHOICE ...] [KEY=VALUE ...]

Stages (choose one, with the plus sign):
{stage_commands()}

Groups and their choices (the files of conf/, where every key is explained):
{chosen}

Keys that people type most:
{keys}

Examples:
{examples}

Exit codes: 0 done and gate open, 1 failed, 2 bad configuration, 3 gate closed, 4 budget refused or stopped,
130 interrupted (resumable). `{COMMAND} +stage=smoke --cfg job` prints the whole configuration.
Money: `python -m cost --help`. Sweeps: `python -m sweeps --help`."""
