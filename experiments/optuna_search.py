"""A search with Optuna: TPE chooses settings, asynchronous successive halving (ASHA) gives up trials that fall behind.

The study is Optuna's own journal in the folder of the search; run folders hold the rest.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.experiments.search_plan import SearchPlan
from rigl_compress.experiments.trial_source import Outcome
from rigl_compress.experiments.trials import Trial
from rigl_compress.pipeline.metrics import METRICS, metric_of
from rigl_compress.pipeline.train.losses import DivergedError
from rigl_compress.pipeline.train.progress import Progress

JOURNAL = "search.journal"
REDUCTION = 4  # one in four goes on at each rung, as in the paper on ASHA (Li et al. 2020)
_REASON = "reason"  # user attribute of a trial that was pruned or failed


class OptunaSearch:
    """A search that chooses the trials of a plan; it goes on where an earlier one with the same plan stopped."""

    def __init__(self, plan: SearchPlan, out: Path) -> None:
        self.plan, self.out = plan, out
        self.optuna = optional_package("optuna", "optuna", "--search optuna")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.study = self._open_study()
        self.asked: dict[tuple[str, int], Any] = {}
        self.unfinished = [each for each in self._trials() if not each.state.is_finished()]

    def earlier(self) -> Iterator[Outcome]:
        """Yield the outcomes of trials that ended in an earlier session."""
        states = self.optuna.trial.TrialState
        for each in self._trials():
            if each.state == states.COMPLETE:
                trial = self._listed(each)
                yield Outcome(trial, trial.run.result())
            elif each.state == states.PRUNED:
                yield Outcome(self._listed(each), pruned=each.user_attrs.get(_REASON, ""))
            elif each.state == states.FAIL:
                yield Outcome(self._listed(each), failure=each.user_attrs.get(_REASON, "the reason is not known"))

    def next(self) -> Trial | Outcome | None:
        """Return a trial that was interrupted, or a new one."""
        if self.unfinished:
            return self._begin(self._taken_up(self.unfinished.pop(0)))
        number = len(self._trials())
        if number >= self.plan.trials:
            return None
        self.study.sampler = self._sampler(number)
        return self._begin(self.study.ask())

    def stops(self, trial: Trial, progress: Progress, /) -> str:
        """Report the metric after every epoch that measured it; return where and why a trial is given up."""
        asked, every = self.asked[trial.key], trial.recipe.train.evaluate_every
        if not progress.ends_epoch or progress.epoch % every or progress.value is None:
            return ""
        if progress.epoch not in self._frozen(asked).intermediate_values:  # a resumed run repeats epochs
            asked.report(progress.value, progress.epoch)
        if progress.iteration == progress.iterations or not asked.should_prune():
            return ""
        metric = METRICS[progress.metric]
        return f"after epoch {progress.epoch} of {progress.epochs}, {metric.title} {metric.show(progress.value)}"

    def ended(self, outcome: Outcome, /) -> Outcome:
        """Tell the study; training that diverged counts as given up, so that the search avoids such settings."""
        asked = self.asked.pop(outcome.trial.key)
        if outcome.failure.startswith(DivergedError.__name__):
            outcome = Outcome(outcome.trial, pruned=outcome.failure.partition(": ")[2])
        states = self.optuna.trial.TrialState
        if outcome.result is not None:
            self.study.tell(asked, metric_of(outcome.result).final_and_best(outcome.result)[0])
            return outcome
        asked.set_user_attr(_REASON, outcome.pruned or outcome.failure)
        self.study.tell(asked, state=states.PRUNED if outcome.pruned else states.FAIL)
        return outcome

    @property
    def record(self) -> dict[str, Any]:
        """What the results file says about the search."""
        return {
            "engine": f"optuna {self.optuna.__version__}",
            "sampler": "tree-structured Parzen estimator",
            "pruner": f"asynchronous successive halving, factor {REDUCTION}, from epoch {self.plan.min_epochs}",
            "space": self.plan.identity["space"],
            "compared_by": self.plan.compared_by,
        }

    def _begin(self, asked: Any) -> Trial | Outcome:
        settings = {axis.key: axis.suggest(asked) for axis in self.plan.space}
        try:
            trial = self.plan.trial(asked.number, settings, self.out)
        except InputError as error:
            refused = self.plan.refused_trial(asked.number, settings, self.out)
            self.asked[refused.key] = asked
            return Outcome(refused, failure=str(error))
        self.asked[trial.key] = asked
        return trial

    def _taken_up(self, frozen: Any) -> Any:
        self.study.sampler = self._sampler(frozen.number)
        return self.optuna.trial.Trial(self.study, frozen._trial_id)

    def _listed(self, frozen: Any) -> Trial:
        settings = _ordered(self.plan, frozen.params)
        try:
            return self.plan.trial(frozen.number, settings, self.out)
        except InputError:
            return self.plan.refused_trial(frozen.number, settings, self.out)

    def _trials(self) -> list[Any]:
        found: list[Any] = self.study.get_trials(deepcopy=False)
        return found

    def _frozen(self, asked: Any) -> Any:
        return self._trials()[asked.number]

    def _sampler(self, number: int) -> Any:
        """Return a sampler seeded by the number of the trial: an interrupted search draws nothing twice."""
        seed = crc32(f"{self.plan.recipe.seed}, trial {number}".encode())
        with warnings.catch_warnings():  # older releases call the option experimental
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            return self.optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _open_study(self) -> Any:
        optuna = self.optuna
        pruner = optuna.pruners.SuccessiveHalvingPruner(self.plan.min_epochs, REDUCTION)
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / JOURNAL
        with _readable(file):
            storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
            study = optuna.create_study(
                storage=storage, study_name=self.plan.name, pruner=pruner, sampler=self._sampler(0), load_if_exists=True
            )
            self._check_identity(study)
        return study

    def _check_identity(self, study: Any) -> None:
        known, wanted = study.user_attrs.get("plan"), self.plan.identity
        if known is not None and known != wanted:
            raise InputError(
                f"{self.out} holds a search with another recipe or space: choose another folder with --output, or "
                "remove it"
            )
        if known is None:
            study.set_user_attr("plan", wanted)


def _ordered(plan: SearchPlan, params: Mapping[str, Any]) -> dict[str, Any]:
    return {axis.key: params[axis.key] for axis in plan.space if axis.key in params}


def states_of(plan: SearchPlan, out: Path) -> dict[Path, str]:
    """Return the trials that a search has chosen so far, with their states; nothing is written."""
    if not (out / JOURNAL).exists():
        return {out: f"{plan.trials} trials to be chosen"}
    search = OptunaSearch(plan, out)
    found = {search._listed(each).path: str(each.state.name).lower() for each in search._trials()}
    left = max(0, plan.trials - len(found))
    return found | ({out: f"{left} more to be chosen"} if left else {})


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # Optuna lets through what its reader meets: KeyError, ValueError, …
        raise InputError(
            f"{file} is no journal of a search ({type(error).__name__}: {one_line(error)}): remove it, or choose "
            "another folder with --output"
        ) from None
