"""Learning curves of the tiny model with GRPO, DAPO and Dr. GRPO: 200 steps with each of three seeds.

    python benchmarks/learning_curves.py --out docs/img/learning.png      # about six minutes on 2 cores

Prints and plots the accuracy on evaluation questions (4 samples per question), before training and every 25 steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

from rl.spec import EvalReport, EvaluationSpec
from rl.trainers import create_trainer
from sweeps.config.build import compose
from sweeps.planning.plan import make_plan, trial_spec

STEPS, SEEDS = 200, (0, 1, 2)
ALGORITHMS = ("grpo", "dapo", "dr_grpo")


def curve(algorithm: str, seed: int, cache: Path) -> list[tuple[int, float]]:
    """(step, accuracy) of every evaluation of one trial."""
    overrides = ["+stage=single", "model=tiny", f"algorithm={algorithm}", f"search.seeds=[{seed}]"]
    cfg = compose([*overrides, "search.prompts_per_step=[8]", "search.lr_scaling=[hold]", f"paths.cache={cache}"])
    with tempfile.TemporaryDirectory() as folder:
        spec = trial_spec(cfg, make_plan(cfg).trials[0], attempt=1, sweep_dir=Path(folder))
        spec = dataclasses.replace(
            spec,
            steps=STEPS,
            rollout=dataclasses.replace(spec.rollout, engine="transformers"),
            evaluation=EvaluationSpec(samples_per_question=4, every_steps=25),
        )
        events = create_trainer("native").run(spec, None)
        return [(e.step, e.accuracy or 0.0) for e in events if isinstance(e, EvalReport)]


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img/learning.png"))
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, len(ALGORITHMS), figsize=(11, 3.2), layout="constrained", sharey=True)
    for axis, algorithm in zip(axes, ALGORITHMS, strict=True):
        for seed in SEEDS:
            points = curve(algorithm, seed, arguments.cache)
            print(f"{algorithm:8} seed {seed}: {points[0][1]:.3f} -> {points[-1][1]:.3f}", flush=True)
            axis.plot(*zip(*points, strict=True), marker=".", label=f"seed {seed}")
        axis.axhline(0.8, color="grey", linewidth=0.8, linestyle="--")
        axis.set(title=algorithm, xlabel="step", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy, evaluation questions")
    axes[0].legend(fontsize=8)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=110)
    print(f"plot written to {arguments.out}")


if __name__ == "__main__":
    main()
