"""The verb `backtest`: how wrong predictions of published results were."""

from typing import Annotated, Literal

import typer

from equipoise.cli.options import Also, AsHtml, AsJson, Data, Full, Hardware, JsonOut, Workloads, catalogue_of
from equipoise.cli.output import answering
from equipoise.errors import SpecError, UsageError


def backtest(
    *,
    rounds: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Rounds to predict; all unless given.")
    ] = None,
    given: Annotated[
        Literal["batch"] | None, typer.Option(help="Let the law know the batch of what is held out.")
    ] = None,
    new_round: Annotated[
        bool, typer.Option("--new-round", help="Hold out all sizes but a group's smallest, not the largest.")
    ] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Test the advised number of accelerators, not the times.")
    ] = False,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    html: AsHtml = None,
    full: Full = False,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Predict past results from earlier ones; report how wrong."""
    if advice and (given or new_round):
        raise UsageError(
            f"--advice with {'--given' if given else '--new-round'}: advice knows no batch and holds out "
            "sizes in its own ways; leave one of the two away"
        )
    catalogue_of(hardware, workloads)  # whether the files can be read: held-out results name no user's chip
    with answering("backtest", as_json=as_json, json_out=json_out, html=html) as answer:
        from threadpoolctl import threadpool_limits

        from equipoise.advice.forecast.held_out_advice import held_out_advice
        from equipoise.cli.console import progress_bar
        from equipoise.report.measured_json import advice_backtest_fields, backtest_fields
        from equipoise.report.pages.backtest import ADVICE_BACKTEST, BACKTEST
        from equipoise.runs.chosen import tables
        from equipoise.runs.queries import best_per_size
        from equipoise.scaling.backtest import backtest as hold_out

        scores = tables(data=data, also=also or ()).scores
        held = sorted(scores["campaign"].drop_nulls().unique())
        chosen = _rounds(rounds, held)
        # The matrices are small: threads would only wait for each other.
        with progress_bar() as progress, threadpool_limits(limits=1):
            done: list[str] = []

            def show(round_: str) -> None:
                done.append(round_)
                if progress is not None:
                    progress(round_, len(done) - 1, len(chosen or held))

            if advice:
                advised = held_out_advice(scores, rounds=chosen, progress=show)
                answer.give_page(ADVICE_BACKTEST, advised, advice_backtest_fields, full=full)
                return
            result = hold_out(
                best_per_size(scores),
                protocol="new_round" if new_round else "largest",
                rounds=chosen,
                given_batch=given == "batch",
                progress=show,
            )
        answer.give_page(BACKTEST, result, backtest_fields, full=full)


def _rounds(listed: str | None, held: list[str]) -> list[str] | None:
    """Rounds from the command line as the data name them."""
    if listed is None:
        return None
    wanted = [f"v{item.strip().lower().removeprefix('v')}" for item in listed.split(",")]
    unknown = next((name for name in wanted if name not in held), None)
    if unknown is not None:
        raise SpecError(f"round {unknown!r} is not in the data; they hold {', '.join(held)}")
    return wanted
