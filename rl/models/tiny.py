"""The model `tiny`: a Llama of about 90,000 parameters for tests and laptops, trained here in seconds.

Its tokenizer knows words and single characters. Supervised training has two phases:

1. `_train_until_known`: right answers to the task's training questions and to one-digit sums.
2. `_train_until_unsure`: the same questions with answers of which three in four are wrong, until about 30 % of sampled
   answers are right. The model then has knowledge that reinforcement learning can recover.

Evaluation questions are never used. The result depends on the task only, not on the seed of a trial.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl.codec import to_json
from rl.models.content import files_hash
from rl.spec import TaskSpec

MAX_POSITIONS = 512
_VERSION = 6
"""Part of the cache key. Increase it when the model or its training changes."""
_BATCH = 64
_MAX_UPDATES = 800
"""Largest number of optimiser updates of each phase."""
_CHECK_EVERY = 50
"""Updates between two checks in the first phase."""
_KNOWN_SHARE = 0.97
"""Share of training questions answered right with greedy decoding at which the first phase ends."""
_UNSURE_SHARE = 0.3
"""Share of right answers to training questions, sampled at temperature 1, at which the second phase ends."""
_PAD, _EOS, _UNKNOWN = "<pad>", "<eos>", "<unk>"
_SUM = re.compile(r"(?<![\d.])(\d) ([+-]) (\d)(?![\d.])")


def folder_name(task: TaskSpec) -> str:
    """Name of the cache folder: one per set of questions and prompt wording. Scorers and rewards do not matter.

    Questions from files are identified by the content of the files.
    """
    relevant = to_json(task)
    for key in ("scorer", "format_pattern", "reward_weights", "reward_timeout_seconds", "reward_workers"):
        del relevant[key]
    content = files_hash(Path(task.path)) if task.kind == "file" and task.path and Path(task.path).exists() else ""
    text = json.dumps([_VERSION, relevant, content] if content else [_VERSION, relevant], sort_keys=True)
    return f"tiny-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def make(task: TaskSpec, folder: Path, report_progress: Callable[[str], None]) -> None:
    """Build and train the model, and save it with its tokenizer into `folder`.

    Raises:
        ConfigurationError: the questions of the task cannot be loaded.
    """
    import torch
    from transformers.utils import logging

    from rl.tasks import load_task

    logging.disable_progress_bar()
    loaded = load_task(task)
    train = [(q.prompt, q.answer) for q in loaded.train]
    evaluation = {q.prompt for q in loaded.evaluation}
    taught = [*train, *(pair for pair in _textbook(train) if pair[0] not in evaluation)]
    tokenizer = _tokenizer([prompt for prompt, _ in train])
    threads, random_state = torch.get_num_threads(), torch.get_rng_state()
    # One thread: two are no faster on matrices this small, and the result is the same on every machine.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model = _model(len(tokenizer))
        _train_until_known(model, _encode(tokenizer, taught), _encode(tokenizer, train), report_progress)
        _train_until_unsure(model, _encode(tokenizer, _mostly_wrong(taught)), _encode(tokenizer, train))
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(random_state)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _textbook(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """(prompt, answer) of all bare one-digit sums and differences, if a question contains one; otherwise empty.

    This imitates pretraining: the model has read `3 + 4 = 7`, but not the evaluation question that asks for it.
    """
    if not any(_SUM.search(prompt) for prompt, _ in pairs):
        return []
    digits = range(10)
    return [
        (f"{a} {sign} {b} =", str(a + b if sign == "+" else a - b)) for a in digits for b in digits for sign in "+-"
    ]


def _tokenizer(prompts: Sequence[str]) -> Any:
    """A tokenizer with one token per word of the prompts, with the space before it, and one per character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    word = r" ?[A-Za-z]{2,}"
    words = sorted({w for prompt in prompts for w in re.findall(word, prompt)})
    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {t: i for i, t in enumerate(dict.fromkeys([_PAD, _EOS, _UNKNOWN, *characters, *words[:400]]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    # A word that is not in the vocabulary becomes one unknown token. Digits and signs are always in the vocabulary.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{word}|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_EOS,
        unk_token=_UNKNOWN,
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
        clean_up_tokenization_spaces=False,
    )


def _model(vocabulary: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,  # each of size 32, the smallest that vllm supports
            num_key_value_heads=2,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


def _encode(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Any, Any]:
    """(ids, labels), both [pairs, longest], padded on the right. Labels are -100 outside of the answer and its end."""
    import torch

    rows = [(tokenizer(p)["input_ids"], [*tokenizer(a)["input_ids"], tokenizer.eos_token_id]) for p, a in pairs]
    longest = max(len(p) + len(a) for p, a in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full((len(rows), longest), -100)
    for i, (prompt, answer) in enumerate(rows):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


def _train_until_known(
    model: Any, taught: tuple[Any, Any], train: tuple[Any, Any], report_progress: Callable[[str], None]
) -> None:
    """Train on `taught` until `_KNOWN_SHARE` of `train` is right, or for `_MAX_UPDATES` updates."""
    for updates in _fit(model, taught, learning_rate=4e-3, updates=_MAX_UPDATES):
        if updates % _CHECK_EVERY == 0:
            greedy, _ = _accuracy(model, train)
            report_progress(f"training the tiny model: {updates} updates, {greedy:.0%} of training questions right")
            if greedy >= _KNOWN_SHARE:
                return


def _train_until_unsure(model: Any, mostly_wrong: tuple[Any, Any], train: tuple[Any, Any]) -> None:
    """Train on `mostly_wrong` until `_UNSURE_SHARE` of sampled answers is right. Longer would erase the knowledge."""
    for _ in _fit(model, mostly_wrong, learning_rate=1e-3, updates=_MAX_UPDATES):
        if _accuracy(model, train)[1] <= _UNSURE_SHARE:
            return


def _mostly_wrong(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Eight pairs per question: two with the right answer, six with near numbers or answers to other questions."""
    changed = []
    for i, (prompt, answer) in enumerate(pairs):
        number = re.fullmatch(r"-?\d+", answer) is not None
        for offset in (-3, -2, -1, 0, 0, 1, 2, 3):
            near = str(int(answer) + offset) if number else pairs[(i + 7 * offset) % len(pairs)][1]
            changed.append((prompt, near))
    return changed


def _fit(model: Any, pairs: tuple[Any, Any], learning_rate: float, updates: int) -> Iterator[int]:
    """Minimise the cross-entropy of the answers. Yields the number of updates done, after each update."""
    import torch

    ids, labels = pairs
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(0)
    for update in range(1, updates + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, update / 30) * (1 - 0.9 * update / updates)
        chosen = torch.randint(0, len(ids), (_BATCH,), generator=generator)
        logits = model(ids[chosen]).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[chosen][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield update


def _accuracy(model: Any, pairs: tuple[Any, Any]) -> tuple[float, float]:
    """Shares of exactly right answers: (with greedy decoding, expected when sampling at temperature 1)."""
    import torch

    ids, labels = pairs
    with torch.no_grad():
        logprobs = model(ids).logits[:, :-1].log_softmax(dim=-1)
    target = labels[:, 1:]
    labelled = target != -100
    chosen = logprobs.gather(2, target.clamp(min=0)[..., None])[..., 0]
    right = torch.where(labelled, logprobs.argmax(dim=-1) == target, True).all(dim=1)
    return float(right.float().mean()), float(torch.where(labelled, chosen, 0.0).sum(dim=1).exp().mean())
