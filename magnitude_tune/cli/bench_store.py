"""What `bench` does with the store of measurements: its history, comparing, export and import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["StoreQuestion", "answer_from_store"]

FORMATS = ("csv", "json", "sqlite")


class StoreQuestion(NamedTuple):
    """What is asked of the store; one of the first four at most.

    Args:
        what: a model's file, an agent's config, or a part of a model's name; None for every model.
        flags: settings from the command line; `--model` names another model than the config.
    """

    history: bool = False
    compare: tuple[str, str] | None = None
    export: str | None = None
    import_file: str | None = None
    what: str | None = None
    flags: tuple[tuple[str, str], ...] = ()
    json_output: bool = False
    output: str | None = None

    @property
    def asked(self) -> bool:
        """Whether there is a question at all: then nothing is measured."""
        return bool(self._asked())

    def _asked(self) -> list[str]:
        return [
            name
            for name, given in (
                ("--history", self.history),
                ("--compare", self.compare is not None),
                ("--export", self.export is not None),
                ("--import", self.import_file is not None),
            )
            if given
        ]

    def the_one(self) -> str:
        """The option that asks.

        Raises:
            UsageError: there are several.
        """
        from magnitude_tune.errors import UsageError

        asked = self._asked()
        if len(asked) > 1:
            raise UsageError(f"{' and '.join(asked)} exclude each other", where="bench", hint="ask one at a time")
        return asked[0]


class _Subject(NamedTuple):
    """Which model's runs are meant: by content where there is a file, else by a part of its name; or all."""

    model_hash: str | None = None
    model_text: str | None = None


def answer_from_store(question: StoreQuestion) -> None:
    """Show what is asked of the store, or take a file into it; nothing is measured.

    Raises:
        UsageError: runs that cannot be compared or found, a store that cannot be used, options that exclude each other.
        InputFileError: a file that cannot be imported.
    """
    {
        "--history": _show_history,
        "--compare": _show_comparison,
        "--export": _export,
        "--import": _import,
    }[question.the_one()](question)


def _show_history(question: StoreQuestion) -> None:
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.observations.history import runs

    found = runs(**_subject(question)._asdict())
    if question.json_output:
        from magnitude_tune.report.history_json import history_document

        emit_json(history_document(found), question.output)
    else:
        from magnitude_tune.report.history_text import history_text

        emit(history_text(found), question.output)


def _show_comparison(question: StoreQuestion) -> None:
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.observations.compare import compare_runs
    from magnitude_tune.observations.history import find_run, runs

    # `last` counts among the runs of the model that is named, as its history lists them.
    of_model = runs(**_subject(question)._asdict())
    a, b = (find_run(reference, of_model) for reference in question.compare or ())
    comparison = compare_runs(a, b, runs())
    if question.json_output:
        from magnitude_tune.report.history_json import comparison_document

        emit_json(comparison_document(comparison), question.output)
    else:
        from magnitude_tune.report.history_text import comparison_text

        emit(comparison_text(comparison), question.output)


def _export(question: StoreQuestion) -> None:
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.errors import UsageError

    if question.export not in FORMATS:
        raise UsageError(f"{question.export} is no format", where="--export", hint=f"choose {', '.join(FORMATS)}")
    if question.export == "sqlite":
        _export_copy(question)
        return
    from magnitude_tune.observations.llama_bench import exported_rows

    rows = exported_rows(**_subject(question)._asdict())
    if question.export == "csv":
        from magnitude_tune.report.history_csv import history_csv

        emit(history_csv(rows), question.output)
    else:
        emit_json(rows, question.output)


def _export_copy(question: StoreQuestion) -> None:
    from magnitude_tune.errors import UsageError
    from magnitude_tune.observations.store import copy_store

    if question.what is not None:
        hint = "leave the model out, or export csv or json"
        raise UsageError("the copy holds every model's runs", where="--export sqlite", hint=hint)
    if question.output in (None, "-"):
        raise UsageError("a database cannot be written to stdout", where="--export sqlite", hint="add -o FILE")
    copy_store(Path(str(question.output)))


def _import(question: StoreQuestion) -> None:
    from magnitude_tune.cli.console import emit, emit_json
    from magnitude_tune.errors import UsageError
    from magnitude_tune.observations.foreign import MAX_FILE_BYTES, parse_foreign, read_foreign
    from magnitude_tune.observations.imports import store_imported

    if question.what is not None:
        raise UsageError("a file is imported whole", where=question.what, hint="leave the model out")
    name = str(question.import_file)
    found = (
        parse_foreign(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "stdin") if name == "-" else read_foreign(Path(name))
    )
    imported = store_imported(found)
    if question.json_output:
        from magnitude_tune.report.history_json import import_document

        emit_json(import_document(imported), question.output)
    else:
        from magnitude_tune.report.history_text import import_text

        emit(import_text(imported), question.output)


def _subject(question: StoreQuestion) -> _Subject:
    """Which model is meant; a text that names no file is looked for in the names of stored models."""
    if question.what is None:
        return _Subject()
    from magnitude_tune.agents.suffixes import looks_like_agent
    from magnitude_tune.errors import InputFileError
    from magnitude_tune.header.cached import read_model_cached

    path = question.what
    if looks_like_agent(Path(path)):
        from magnitude_tune.pipeline.resolve import ResolveOptions, read_request

        _, request = read_request(ResolveOptions(what=path, flags=question.flags))
        if request.model is None:
            raise InputFileError("no model is named", where=path, hint="add model_path, or use --model FILE")
        path = request.model
    elif not Path(path).exists():
        return _Subject(model_text=path)
    return _Subject(model_hash=read_model_cached(path).content_hash)
