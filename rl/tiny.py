"""A language model small enough for tests and laptops: made here in seconds, wrong two times out of three.

A Llama of some 90,000 parameters with a tokenizer of its own (words and single characters). It is taught, supervised,
a page of sums and the task's training questions, never a question that is held out for evaluation; then, with answers
of which some are wrong, it is made unsure of itself until what it samples is right about 0.3 of the time. So it knows
enough for reinforcement learning to find it. A pure function of the task: no seed of a trial enters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl.codec import to_json
from rl.spec import TaskSpec

MAX_POSITIONS = 512
_VERSION = 6
"""Part of the cache key: another recipe, another folder."""
_BATCH = 64
_UPDATES_AT_MOST = 800
_CHECK_EVERY = 50
_KNOWS = 0.97
"""Share of training questions that are right, greedily, at which teaching ends."""
_UNSURE = 0.3
"""Share of right answers, sampled at temperature 1 to the training questions, at which doubting ends."""
_PAD, _EOS, _UNKNOWN = "<pad>", "<eos>", "<unk>"
_SUM = re.compile(r"(?<![\d.])(\d) ([+-]) (\d)(?![\d.])")


def folder_name(task: TaskSpec) -> str:
    """Name of the cache folder: one for each set of questions and their wording."""
    asked = to_json(task)
    for judged in ("scorer", "format_pattern", "reward_weights", "reward_timeout_seconds", "reward_workers"):
        del asked[judged]
    text = json.dumps([_VERSION, asked], sort_keys=True)
    return f"tiny-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def make(task: TaskSpec, folder: Path, tell: Callable[[str], None]) -> None:
    """Build, teach and save the model and its tokenizer into `folder`."""
    import torch
    from transformers.utils import logging

    from rl.tasks import load_task

    logging.disable_progress_bar()
    loaded = load_task(task)
    train = [(q.prompt, q.answer) for q in loaded.train]
    held_out = {q.prompt for q in loaded.evaluation}
    taught = [*train, *(pair for pair in _textbook(train) if pair[0] not in held_out)]
    tokenizer = _tokenizer([prompt for prompt, _ in train])
    threads, random_state = torch.get_num_threads(), torch.get_rng_state()
    # One thread: matrices this small gain nothing from two, and the sums come out the same everywhere.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model = _model(len(tokenizer))
        _teach(model, _encode(tokenizer, taught), _encode(tokenizer, train), tell)
        _unsettle(model, _encode(tokenizer, _doubtful(taught)), _encode(tokenizer, train))
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(random_state)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _textbook(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """All one-digit sums, bare, if that is what the task asks about; so the model knows sums from elsewhere.

    As with any language model: it has read `3 + 4 = 7`, and has not seen the held-out question that asks for it.
    """
    if not any(_SUM.search(prompt) for prompt, _ in pairs):
        return []
    digits = range(10)
    return [
        (f"{a} {sign} {b} =", str(a + b if sign == "+" else a - b)) for a in digits for b in digits for sign in "+-"
    ]


def _tokenizer(prompts: Sequence[str]) -> Any:
    """Words of letters that the prompts use, with the space before them, are one token; all else is characters."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    word = r" ?[A-Za-z]{2,}"
    words = sorted({w for prompt in prompts for w in re.findall(word, prompt)})
    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {t: i for i, t in enumerate(dict.fromkeys([_PAD, _EOS, _UNKNOWN, *characters, *words[:400]]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    # A word that is not in the vocabulary becomes one unknown token; answers and numbers never contain one.
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
            num_attention_heads=2,  # of 32: the smallest that vllm takes
            num_key_value_heads=2,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


def _encode(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Any, Any]:
    """(ids, labels), both [pairs, longest], padded on the right; labels are -100 outside answer and end."""
    import torch

    rows = [(tokenizer(p)["input_ids"], [*tokenizer(a)["input_ids"], tokenizer.eos_token_id]) for p, a in pairs]
    longest = max(len(p) + len(a) for p, a in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full((len(rows), longest), -100)
    for i, (prompt, answer) in enumerate(rows):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


def _teach(model: Any, taught: tuple[Any, Any], train: tuple[Any, Any], tell: Callable[[str], None]) -> None:
    """Until the training questions are known or patience ends."""
    for updates in _fit(model, taught, learning_rate=4e-3, updates=_UPDATES_AT_MOST):
        if updates % _CHECK_EVERY == 0:
            greedy, _ = _accuracy(model, train)
            tell(f"warming the tiny model: {updates} updates, {greedy:.0%} of the training questions known")
            if greedy >= _KNOWS:
                return


def _unsettle(model: Any, doubtful: tuple[Any, Any], train: tuple[Any, Any]) -> None:
    """Until what is sampled is right at `_UNSURE`, and no longer: more would make it forget what it knows."""
    for _ in _fit(model, doubtful, learning_rate=1e-3, updates=_UPDATES_AT_MOST):
        if _accuracy(model, train)[1] <= _UNSURE:
            return


def _doubtful(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each question with its right answer one time in four, else with one near it (another's, if not a number)."""
    doubtful = []
    for i, (prompt, answer) in enumerate(pairs):
        number = re.fullmatch(r"-?\d+", answer) is not None
        for off in (-3, -2, -1, 0, 0, 1, 2, 3):
            near = str(int(answer) + off) if number else pairs[(i + 7 * off) % len(pairs)][1]
            doubtful.append((prompt, near))
    return doubtful


def _fit(model: Any, pairs: tuple[Any, Any], learning_rate: float, updates: int) -> Iterator[int]:
    """Cross-entropy on the answers; yields the number of updates after each."""
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
    """(greedy, expected under sampling) share of exactly right answers."""
    import torch

    ids, labels = pairs
    with torch.no_grad():
        logprobs = model(ids).logits[:, :-1].log_softmax(dim=-1)
    target = labels[:, 1:]
    asked = target != -100
    chosen = logprobs.gather(2, target.clamp(min=0)[..., None])[..., 0]
    right = torch.where(asked, logprobs.argmax(dim=-1) == target, True).all(dim=1)
    return float(right.float().mean()), float(torch.where(asked, chosen, 0.0).sum(dim=1).exp().mean())
