"""Questions from generators, files, hub data sets and a user's module, and the error messages for invalid sources."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rl.spec import ConfigurationError, TaskSpec
from rl.tasks import load_task
from rl.tasks.sources import SourceRows, hub_rows, load_hub, read_rows

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"
needs_gsm8k = pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not in ../shared/data")
MakeTask = Callable[..., TaskSpec]


# -- reasoning-gym ----------------------------------------------------------------------------------------------------


def test_products_of_one_digit_numbers_are_100_questions_with_right_answers() -> None:
    params = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    task = load_task(TaskSpec("reasoning_gym", "products", params=params, eval_questions=40))
    assert len(task.train) == 60
    for question in task.train:
        left, right = (int(w) for w in question.prompt.split(":")[1].split(".")[0].split("*"))
        assert question.answer == str(left * right)


def test_generator_is_drawn_from_until_there_are_enough_distinct_questions() -> None:
    params = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
    spec = TaskSpec("reasoning_gym", "chain_sum", params=params, train_questions=5000, eval_questions=500)
    assert len(load_task(spec).train) == 5000


def test_generator_with_too_few_questions_is_refused_with_their_number() -> None:
    params = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    spec = TaskSpec("reasoning_gym", "chain_sum", params=params, train_questions=150)
    with pytest.raises(ConfigurationError, match=r"'chain_sum' has 200 distinct questions.*together at most 200"):
        load_task(spec)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("chain_some", {}, "chain_some.*not registered"),
        ("chain_sum", {"terms": 2}, "unexpected keyword argument 'terms'"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "max_terms must be >= min_terms"),
        ("chain_sum", {"seed": 1}, "seeded by task.data_seed"),
        ("graph_color", {}, "entry 0 has no single right answer: it needs its own scorer; use task.kind=module"),
    ],
)
def test_invalid_generator_is_refused_with_the_error_of_the_library(
    name: str, params: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_task(TaskSpec("reasoning_gym", name, params=params))


# -- files ------------------------------------------------------------------------------------------------------------


@needs_gsm8k
def test_gsm8k_in_verls_schema_uses_its_own_test_split() -> None:
    task = load_task(TaskSpec("file", "gsm8k", path=str(GSM8K), eval_questions=100))
    assert (len(task.train), len(task.evaluation)) == (7473, 100)
    natalia = next(q for q in task.train if "Natalia sold clips to 48" in q.prompt)
    assert natalia.answer == "72"
    janet = next(q for q in load_task(TaskSpec("file", "g", path=str(GSM8K), eval_questions=1319)).evaluation)
    assert "####" not in janet.answer


@needs_gsm8k
def test_nested_fields_of_gsm8k_give_the_plain_question_and_the_final_answer() -> None:
    spec = TaskSpec(
        *("file", "gsm8k", str(GSM8K / "test.parquet")),
        question_field="extra_info.question",
        answer_field="extra_info.answer",
    )
    task = load_task(spec)
    assert len(task.train) + len(task.evaluation) == 1319
    janet = next(q for q in (*task.train, *task.evaluation) if "ducks lay 16 eggs" in q.prompt)
    assert janet.answer == "18"
    assert "step by step" not in janet.prompt


def test_answer_of_a_written_solution_is_the_part_after_the_hashes(task_file: MakeTask) -> None:
    row = {"question": "q", "answer": "2 * 36 = <<2*36=72>>72\n#### 1,072"}
    assert load_task(task_file([row], eval_questions=0)).train[0].answer == "1,072"


def test_answer_may_be_a_number(task_file: MakeTask) -> None:
    rows = [{"question": "a", "answer": 7}, {"question": "b", "answer": 0.5}]
    task = load_task(task_file(rows, eval_questions=0))
    assert {q.prompt: q.answer for q in task.train} == {"a": "7", "b": "0.5"}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (5e-05, "0.00005"),
        (3e16, "30000000000000000"),
        (0.1, "0.1"),
        (72.0, "72.0"),
        (10**30, "1" + "0" * 30),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+3"), "1000"),
        (Fraction(3, 4), "3/4"),
        (np.int64(7), "7"),
        (np.float64(5e-05), "0.00005"),
        (np.float32(0.1), "0.1"),
        (np.str_("8"), "8"),
    ],
)
def test_number_of_any_type_is_an_answer_in_plain_digits(
    user_module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, answer: object, text: str
) -> None:
    name = user_module("value = None\ndef rows():\n    return [{'question': 'a', 'answer': value}]")
    monkeypatch.setattr(f"{name}.value", answer)
    assert load_task(module_task(f"{name}:rows", eval_questions=0)).train[0].answer == text


@pytest.mark.parametrize(
    "answer", [float("nan"), float("inf"), Decimal("NaN"), np.float64("nan"), np.bool_(True), b"1", 1j, np.arange(2)]
)
def test_answer_that_is_no_finite_number_is_refused_with_its_position(
    user_module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    name = user_module("value = None\ndef rows():\n    return [{'question': 'a', 'answer': value}]")
    monkeypatch.setattr(f"{name}.value", answer)
    with pytest.raises(ConfigurationError, match=r"item 0: the answer .* should be a text or a number"):
        load_task(module_task(f"{name}:rows", eval_questions=0))


@pytest.mark.parametrize("code", ["import sys\nsys.exit(3)", "import sys\ndef f():\n    sys.exit(3)"])
def test_user_module_that_exits_is_refused_with_its_error(user_module: Callable[[str], str], code: str) -> None:
    with pytest.raises(ConfigurationError, match=r"SystemExit: 3"):
        load_task(module_task(f"{user_module(code)}:f"))


def test_question_may_be_chat_messages(task_file: MakeTask) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    spec = task_file([{"question": chat, "answer": "1"}], eval_questions=0, system_prompt="other")
    assert load_task(spec).train[0].messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "b", "answer": "2"', "line 2 is not JSON"),
        ("\x00", "line 2 is not JSON"),
        ("[1, 2]", "line 2 should be a mapping with 'question' and 'answer'"),
        ('{"query": "b", "answer": "2"}', "line 2 has no value at 'question'; its fields are: query, answer"),
        ('{"question": "b"}', "line 2 has no value at 'answer'; its fields are: question"),
        ('{"question": "b", "answer": null}', "line 2 has no value at 'answer'"),
        ('{"question": " ", "answer": "2"}', "line 2: question=' ' should be a text that is not empty"),
        ('{"question": 5, "answer": "2"}', "line 2: question=5 should be a text"),
        ('{"question": "b", "answer": ["2"]}', r"line 2: the answer \['2'\] should be a text or a number"),
        ('{"question": "b", "answer": true}', "line 2: the answer True should be a text or a number"),
        ('{"question": "b", "answer": NaN}', "line 2: the answer nan should be a text or a number"),
        (r'{"question": "b\ud800", "answer": "2"}', r"line 2: the question has a lone surrogate .* at character 2"),
        (r'{"question": "b", "answer": "\udfff"}', r"line 2: the answer has a lone surrogate .* at character 1"),
        (r'{"question": [{"role": "user", "content": "\ud800"}], "answer": "2"}', "line 2: the question has a lone"),
        ('{"question": "b", "answer": "see #### "}', "line 2: the answer is empty"),
        ('{"question": "b", "answer": "two"}', "line 2: the answer 'two' is not a number.*exact or math_verify"),
        ('{"question": [], "answer": "2"}', "line 2: the prompt should be a list of chat messages"),
        ('{"question": [{"role": "user"}], "answer": "2"}', "line 2: the chat message"),
        (
            '{"question": [{"role": "assistant", "content": "x"}], "answer": "2"}',
            "line 2: the last .* should be the user",
        ),
    ],
)
def test_invalid_line_is_named_by_file_and_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\n' + line + "\n")
    with pytest.raises(ConfigurationError, match=f"{path}, {message}"):
        load_task(TaskSpec("file", "bad", path=str(path), eval_questions=0))


def test_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'{"question": "a", "answer": "1"}\n{"question": "\xff\xfe"}\n')
    with pytest.raises(ConfigurationError, match=r"bad\.jsonl, line 2 is not JSON"):
        load_task(TaskSpec("file", "bad", path=str(tmp_path / "bad.jsonl")))


def test_empty_lines_are_skipped_and_counted_in_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"question": "a", "answer": "1"}\n\n  \nnonsense\n')
    with pytest.raises(ConfigurationError, match="line 4 is not JSON"):
        load_task(TaskSpec("file", "t", path=str(tmp_path / "t.jsonl")))


def test_invalid_row_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"question": ["a", None], "answer": ["1", "2"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ConfigurationError, match=r"t\.parquet, row 2 has no value at 'question'"):
        load_task(TaskSpec("file", "t", path=str(tmp_path / "t.parquet")))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "task.path is missing"),
        ("nowhere/task.jsonl", "nowhere/task.jsonl: there is no such file"),
        ("task.csv", "the name of a task file ends in .parquet or .jsonl"),
        ("broken.parquet", "broken.parquet is not a readable parquet file"),
        ("empty", "is a folder without train and test"),
    ],
)
def test_invalid_path_is_refused_with_what_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.csv").write_text("a,b\n")
    (tmp_path / "broken.parquet").write_text("a,b\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=message):
        load_task(TaskSpec("file", "t", path=path))


def test_parameters_for_a_file_are_refused(task_file: MakeTask) -> None:
    spec = task_file([{"question": "a", "answer": "1"}], params={"split": "train"})
    with pytest.raises(ConfigurationError, match="has no meaning for the file"):
        load_task(spec)


def test_train_and_test_files_of_a_folder_are_not_mixed(tmp_path: Path) -> None:
    def write(name: str, questions: list[str]) -> None:
        (tmp_path / name).write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in questions))

    write("train.jsonl", [f"a{i}" for i in range(10)] + ["shared"])
    write("test.jsonl", ["b0", "b1", "shared"])
    task = load_task(TaskSpec("file", "t", path=str(tmp_path), eval_questions=3))
    assert {q.prompt for q in task.evaluation} == {"b0", "b1", "shared"}
    assert {q.prompt for q in task.train} == {f"a{i}" for i in range(10)}
    with pytest.raises(
        ConfigurationError, match=r"11 distinct training questions \(10 not in evaluation\) and 3 for test"
    ):
        load_task(TaskSpec("file", "t", path=str(tmp_path), eval_questions=3, train_questions=11))


HUB_CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: socratic
  data_files:
  - {split: train, path: socratic/train-*}
  - {split: test, path: socratic/test-*}
---
"""


def hub_folder(folder: Path) -> Path:
    """A folder with the subsets, the shards and the card of a hub data set, as the hub serves GSM8K."""
    import pyarrow
    import pyarrow.parquet

    for subset in ("main", "socratic"):
        (folder / subset).mkdir(parents=True)
        for split, shards in (("train", 2), ("test", 1)):
            for i in range(shards):
                rows = {"question": [f"{subset} {split} {i}"], "answer": [f"It is <<1+{i}=9>>9\n#### {i}"]}
                path = folder / subset / f"{split}-{i:05}-of-{shards:05}.parquet"
                pyarrow.parquet.write_table(pyarrow.table(rows), path)
    (folder / "README.md").write_text(HUB_CARD)
    return folder


def questions_of(rows: SourceRows) -> list[tuple[str, str]]:
    assert rows.test is not None
    return [(r.messages[0]["content"], r.answer) for r in (*rows.train, *rows.test)]


def test_copy_of_a_hub_folder_is_read_like_the_hub_data_set_itself(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="hub data sets are read with the package `datasets`")
    folder = hub_folder(tmp_path / "gsm8k")
    spec = TaskSpec("file", "gsm8k", path=str(folder), subset="main")
    expected = [("main train 0", "0"), ("main train 1", "1"), ("main test 0", "0")]
    assert questions_of(read_rows(spec)) == expected
    online = dataclasses.replace(spec, params={"cache_dir": str(tmp_path / "cache")})
    assert questions_of(load_hub(online)) == expected  # the library reads a local folder by the rules of the hub


def test_folder_with_several_subsets_needs_the_name_of_one(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="hub data sets are read with the package `datasets`")
    folder = hub_folder(tmp_path / "gsm8k")
    for subset in (None, "mian"):
        spec = TaskSpec("file", "gsm8k", path=str(folder), subset=subset)
        with pytest.raises(ConfigurationError, match=r"has the subsets main, socratic: set task.subset to one of them"):
            read_rows(spec)
    with pytest.raises(ConfigurationError, match="Config name is missing"):
        load_hub(TaskSpec("file", "gsm8k", path=str(folder), params={"cache_dir": str(tmp_path / "cache")}))


@pytest.mark.parametrize("inner", ["data", "default", ""])
def test_folder_of_the_only_subset_needs_no_name(tmp_path: Path, inner: str) -> None:
    folder = hub_folder(tmp_path / "all") / "main"
    place = tmp_path / "one" / inner
    place.parent.mkdir(exist_ok=True)
    folder.rename(place)
    assert questions_of(read_rows(TaskSpec("file", "t", path=str(tmp_path / "one"))))[0] == ("main train 0", "0")


def test_splits_of_a_hub_data_set_are_used() -> None:
    datasets = pytest.importorskip("datasets", reason="hub data sets are read with the package `datasets`")
    made = datasets.DatasetDict(
        {n: datasets.Dataset.from_dict({"question": [n], "answer": ["x #### 4"]}) for n in ("train", "test")}
    )
    spec = TaskSpec("file", "hub", path="some/data")
    read = hub_rows(spec, made)
    assert read.test is not None
    assert [(r.messages[0]["content"], r.answer) for r in (*read.train, *read.test)] == [("train", "4"), ("test", "4")]
    with pytest.raises(ConfigurationError, match="has no split `train`; it has: test"):
        hub_rows(spec, {"test": made["test"]})


# -- a user's module --------------------------------------------------------------------------------------------------

USER = """
def questions(n=10):
    return ({"question": f"say {i}", "answer": str(i)} for i in range(n))

def with_scorer(n=10):
    return list(questions(n)), score

def score(completion, answer):
    return completion == answer

def with_lambda():
    return list(questions()), lambda c, a: 1.0

def bad_item():
    return [{"question": "a", "answer": "1"}, {"question": "b"}]

def throws():
    raise KeyError("lost")

class Tasks:
    @staticmethod
    def nested():
        return list(questions(3))
"""


def module_task(name: str, **settings: object) -> TaskSpec:
    return dataclasses.replace(TaskSpec("module", name, eval_questions=2), **settings)  # type: ignore[arg-type]


def test_user_function_returns_the_questions(user_module: Callable[[str], str]) -> None:
    name = user_module(USER)
    task = load_task(module_task(f"{name}:questions", params={"n": 5}))
    assert sorted(q.prompt for q in (*task.train, *task.evaluation)) == [f"say {i}" for i in range(5)]
    assert task.user_scorer is None
    assert len(load_task(module_task(f"{name}:Tasks.nested")).train) == 1


def test_user_module_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_beside_the_command.py").write_text(USER)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p])
    monkeypatch.chdir(tmp_path)
    assert len(load_task(module_task("module_beside_the_command:questions")).train) == 8


def test_user_scorer_is_identified_by_its_name(user_module: Callable[[str], str]) -> None:
    name = user_module(USER)
    assert load_task(module_task(f"{name}:with_scorer")).user_scorer == f"{name}:score"


@pytest.mark.parametrize(
    ("function", "params", "message"),
    [
        ("absent", {}, "has no absent"),
        ("throws", {}, "failed: KeyError: 'lost'"),
        ("questions", {"m": 1}, "failed: TypeError: .*'m'"),
        ("bad_item", {}, ":bad_item, item 1 has no value at 'answer'"),
        ("with_lambda", {}, "cannot be imported by name; define it with `def`"),
    ],
)
def test_failing_user_function_is_refused_with_its_error(
    user_module: Callable[[str], str], function: str, params: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_task(module_task(f"{user_module(USER)}:{function}", params=params))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "should be of the form package.module:function"),
        ("", "should be of the form package.module:function"),
        ("no.such.module:f", "cannot import no.such.module: ModuleNotFoundError"),
    ],
)
def test_name_without_function_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_rows(module_task(name))


def test_module_that_fails_to_import_is_refused_with_its_error(user_module: Callable[[str], str]) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot import .*: ZeroDivisionError"):
        read_rows(module_task(f"{user_module('1 / 0')}:f"))
