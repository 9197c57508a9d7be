from __future__ import annotations

import copy
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.dataLoader.progress import LoadingCancelled
from modules.model.dtypes import torch_dtype
from modules.model.noising.sampling import SamplingCancelled
from modules.modelSetup import training
from modules.runner.events import FINISH_STATUSES
from modules.runner.RunDirectory import RunDirectory
from modules.trainer.assembly import Run, assemble, check_model, check_settings
from modules.trainer.callbacks import Callback
from modules.trainer.control.Commands import BACKUP, PAUSE, RESUME, SAMPLE, SAVE, STOP, Commands
from modules.trainer.control.Interval import Interval, ends_a_tenth
from modules.trainer.control.Pace import Pace
from modules.trainer.control.PeerWatch import PeerLost
from modules.trainer.control.StopSignals import StopSignals
from modules.trainer.diagnosis import fault_of, memory
from modules.trainer.distributed import Processes
from modules.trainer.late import UnreadStep, can_wait, update_if_finite
from modules.trainer.memory.memory_advice import resumed_mode
from modules.trainer.online.VoteDesk import Asking
from modules.trainer.optim.optimizers import effective_rate, set_learning_rate
from modules.trainer.resume.backup_contents import Counters
from modules.trainer.resume.checkpoint import list_backups, write_backup
from modules.trainer.resume.find_resume import find_resume, put_aside
from modules.trainer.resume.Rescue import Rescue
from modules.trainer.resume.resume_rules import check_resumable, check_same_start
from modules.trainer.resume.run_state import restore, take_snapshot
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.enum.choices import TimeUnit
from modules.util.errors import DataError, UserError, refused_as
from modules.util.files.output_place import output_fault
from modules.util.TrainProgress import TrainProgress

FINISHED, STOPPED, FAILED = FINISH_STATUSES
PHASE_SECONDS = 0.25
SCORING = "scoring pairs with the reference"
SAMPLE_BIT, SAVE_BIT, BACKUP_BIT = 1, 2, 3


class GenericTrainer:
    """Runs the training that a config describes, in a run directory, from the start or from a backup.

    ``run`` does everything; ``start``, ``train`` and ``end`` are its parts.

    Args:
        config: a checked config; concepts and samples may be in it or in their own files.
        run: the run folder for all output; the caller holds its lock.
        callback: notified of what happens, in the first process.
        processes: this process within the group of the run; a group of one by default.
    """

    def __init__(
        self, config: TrainConfig, run: RunDirectory, callback: Callback, processes: Processes | None = None
    ) -> None:
        self.config, self.run_directory = config, run
        self.processes = processes or Processes.start(config.train_device)
        self.callback = callback if self.processes.first else Callback()
        self.progress = TrainProgress()
        self._signals = StopSignals()
        self._commands = Commands(run, self._signals, self.callback, self.processes)
        self._backup_interval = Interval(config.backup_after, config.backup_after_unit)
        self._save_interval = Interval(config.save_every, config.save_every_unit)
        self._sample_interval = Interval(config.sample_after, config.sample_after_unit)
        self._validation_interval = Interval(config.validate_after, config.validate_after_unit)
        self._pace = Pace()
        self._last_phase = -math.inf
        self._resumed_from: Path | None = None
        self._moved = False
        self._counters = Counters()
        self._rescue = Rescue(self.processes.device)
        self._parts: Run | None = None
        self._begun_with = config
        self._reads_late = False
        self._unread: UnreadStep | None = None

    @property
    def parts(self) -> Run:
        """The model, the data and the rest. Available after ``start``, unless only the cache was filled."""
        if self._parts is None:
            raise RuntimeError("the run has not been started")
        return self._parts

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.parts.loader.total_steps

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Start, train and end. Returns ``finished`` or ``stopped``. Errors are reported to the callback and
        raised.
        """
        status = FAILED
        try:
            with self._signals:
                ended = self.start()
                if ended is None:
                    with self._rescue.watching(self._free, self._rescue_backup):
                        status = self.train()
                        if status == FINISHED:
                            self.end()
                else:
                    status = ended
        except LoadingCancelled:
            status = STOPPED
        except Exception as error:
            status = FAILED
            fault = fault_of(error)
            trace = "" if isinstance(error, (UserError, PeerLost)) else traceback.format_exc()
            self.callback.error(fault.message, fault.category, fault.hint, trace)
            raise
        finally:
            try:
                self.callback.finished(FAILED if sys.exc_info()[0] is not None else status, self.progress)
            finally:
                self.close()
        return status

    def close(self) -> None:
        """Release everything the run holds. Commands that were not executed are answered."""
        for bit in (STOP, BACKUP, SAMPLE, SAVE, PAUSE, RESUME):
            self._commands.failed(bit, "the run has ended")
        if self._parts is not None:
            self._parts.close()
        self.callback.close()

    def start(self) -> str | None:
        """Load the model, encode the data and restore a backup. Returns how the run ended if it ended here."""
        config = self.config
        if config.cpu_threads:
            torch.set_num_threads(config.cpu_threads)
        check_settings(config, self.processes.world_size)
        # concepts and samples are read once, because their files may change while the run starts and during it
        config = self._begun_with = config.packed()
        run = self.run_directory
        resumes, backup, before = config.continue_last_backup, None, None
        found = find_resume(run.backup_dir, self.processes, self.callback.warning) if resumes else None
        if found is not None:
            self._resumed_from, backup = found
            check_resumable(config, backup.config)
            check_same_start(config, backup.config, backup.state, self.processes.world_size)
            config = resumed_mode(config, backup.state)
            before = backup.state.get("weight_files", {})
        check_model(config, before)
        asking = Asking(self.callback, self._commands.stop_wanted)
        self._parts = assemble(config, run.path, run.samples_dir, self.processes, self._tell, asking, before)
        if self._parts is None:
            self.progress = self.progress if backup is None else backup.progress
            return FINISHED
        if self.processes.world_size > 1:
            self.processes.check_same_data(self.parts.loader.data_digest())
        training_adapter = self.parts.model.training_adapter
        notes = training_adapter.file.notes if training_adapter is not None else ()
        for note in (*notes, *(self.parts.handle.notes if self.parts.handle is not None else ())):
            self.callback.warning(note)
        if backup is not None:
            restore(self.parts, backup, self._counters, self.config.base_model_name, self.processes.first)
            self.progress = backup.progress
            self.processes.barrier()
        parts = self.parts
        if not parts.score_pairs(partial(self._tell, SCORING), self._commands.stop_wanted):
            return STOPPED
        self.processes.check_same(parts.named)
        parts.ready()
        self._reads_late = can_wait(parts, self.processes)
        if config.only_cache:
            return FINISHED
        if not resumes and self.processes.first:
            put_aside(run.backup_dir, self.callback.warning)
        self.processes.barrier()
        return None

    def train(self) -> str:
        """Take the remaining optimizer steps. Returns ``finished`` or ``stopped``."""
        self._announce()
        if self.config.sample_before_training and self.progress.global_step == 0:
            self._try(self._sample)
        with self._steps_kept():
            self._do_what_was_left()
        self._pace.leave_out()
        for group in self._groups():
            if group is None:
                return STOPPED
            if self.progress.global_step >= self.total_steps or self._out_of_patience():
                break
            if self.parts.stops.all_ended(group.epoch, self.progress.global_step):
                self.callback.warning("training ends here: every part has reached its stop_training_after")
                break
            if self._obey(self._commands.hear()):
                self._backup()
                self._commands.done(STOP)
                return STOPPED
            self._pass_empty_epochs(group.epoch)
            self._advance(group, self._take_step(group))
            with self._steps_kept():
                self._do_what_is_due(group.last)
        else:
            if not self.config.max_steps:
                self._pass_empty_epochs(self.config.epochs)
        self._read_step()
        return FINISHED

    def _groups(self) -> Generator[AccumulationGroup | None]:
        """Yield the remaining optimizer steps; ``None`` if the run was stopped during a rollout, or while
        caching the prompts of text encoders that are no longer trained.
        """
        stops, settled = self.parts.stops, True
        try:
            while settled:
                stops.keep_texts(self.progress)
                settled = False
                for group in self.parts.loader.accumulation_groups(self.progress):
                    yield group
                    settled = self.progress.global_step < self.total_steps and stops.texts_settle(
                        self.progress
                    )
                    if settled:
                        break
        except (SamplingCancelled, LoadingCancelled):
            self._obey(self._commands.hear())
            self._backup()
            self._commands.done(STOP)
            yield None
        except UserError:
            # a reward, a file or the disk of the cache may have failed; the steps so far must not be lost
            self._rescue_backup()
            raise

    def end(self) -> None:
        """Choose the final weights and save them."""
        parts, config = self.parts, self.config
        self._check_moved()
        if parts.validation is not None and self._counters.validated_at != self.progress.global_step:
            with self._steps_kept():
                self._validate()
        fault = output_fault(config)
        if config.backup_before_save or fault:
            self._backup()
        if fault:
            raise fault
        self._note_average()
        best = parts.best if parts.best is not None and parts.best.step is not None else None
        # the disk may be full, or a number too large for the type of the output. The best weights replace those of the
        # last step for good, so that a backup would be of neither; but they are kept in a file of their own.
        with self._steps_kept() if best is None else nullcontext(), parts.exported_weights():
            if best is not None and self.processes.first:
                # last of all, because neither the average nor the optimizer's view may come after it; only
                # where it is saved
                best.restore()
                self.callback.phase(f"keeping the best weights, of step {best.step}", 1, 1)
            self._save(Path(config.output_model_destination))
        self.processes.barrier()

    def _check_moved(self) -> None:
        """Raise ``DataError`` if images were made and judged but no step had a gradient to learn from."""
        # whether anything was learned before a backup is unknown here
        whole = self._resumed_from is None and self.progress.global_step > 0
        if self.config.trains_online and whole and not self._moved:
            raise DataError(
                f"nothing was learned in {self.progress.global_step} steps: all gradients were 0. Nothing is saved",
                field="rlhf_reward",
                hint="the images of a prompt probably got equal rewards: check the reward, or make images differ more "
                "(rlhf_group_size, rlhf_rollout_noise_level)",
            )

    # -- one step ----------------------------------------------------------------------------------------------

    def _take_step(self, group: AccumulationGroup) -> dict[str, float] | None:
        """Take an optimizer step. Returns what to log, or ``None`` if that is read later."""
        parts, step = self.parts, self.progress.global_step
        self._rescue.whole = parts.fused is None
        parts.begin(self.progress)
        set_learning_rate(parts.optimizer, parts.schedule.factor(step))
        self._gradients(group, step)
        self._read_step()
        self.processes.reduce_gradients(parts.parameters)
        gradients = [p.grad for p in parts.parameters if p.grad is not None]
        parts.scaler.unscale(gradients)
        norm = self._clip(gradients)
        numbers = parts.step.numbers() if self._reads_late and gradients else None
        if numbers is None:
            logged = self._update_at_once(step, norm)
        else:
            self._rescue.whole = False
            update_if_finite(parts.optimizer, norm, numbers.sound, self._update)
        parts.optimizer.zero_grad(set_to_none=True)
        self._rescue.whole = True
        rates = {f"lr/{group['name']}": effective_rate(group) for group in parts.optimizer.param_groups}
        if numbers is None:
            return {**logged, **rates}
        self._unread = UnreadStep(self.progress, numbers, norm, rates)
        return None

    def _update_at_once(self, step: int, norm_on_device: torch.Tensor) -> dict[str, float]:
        """Update the weights if loss and gradient are finite. Returns what to log."""
        parts = self.parts
        norm, metrics = float(norm_on_device), parts.step.metrics()
        sound = math.isfinite(metrics["loss/train_step"])
        finite = math.isfinite(norm) and sound
        self._rescue.whole = False
        if finite:
            self._update()
            self._updated(step, norm)
        elif not (sound and parts.scaler.searching):
            self._undefined(metrics["loss/train_step"], norm)
        if sound:
            # the loss itself is not scaled, so a smaller scale fixes only gradients
            parts.scaler.update(finite)
        return {**metrics, "grad_norm": norm}

    def _updated(self, step: int, norm: float) -> None:
        """Called after an update of the weights, before the next one."""
        self._moved = self._moved or norm > 0
        if self.parts.ema is not None:
            self.parts.ema.update(step)
        if self.parts.old_policy is not None:
            self.parts.old_policy.update(step)
        self._counters.undefined_steps = 0

    def _read_step(self) -> None:
        """Read and log the numbers of the last step, if that was put off. The weights must still be those after it."""
        unread, self._unread = self._unread, None
        if unread is None:
            return
        metrics, norm = unread.read()
        if math.isfinite(norm) and math.isfinite(metrics["loss/train_step"]):
            self._updated(unread.before.global_step, norm)
        else:
            now, self.progress = self.progress, unread.before
            self._undefined(metrics["loss/train_step"], norm)
            self.progress = now
        self._log(unread.after, {**metrics, "grad_norm": norm, **unread.more}, unread.left)

    def _gradients(self, group: AccumulationGroup, step: int) -> None:
        try:
            self.parts.step.forward_backward(group, step, self._backward)
        except UserError:
            # invalid or inconsistent values: the weights are still those of the previous step
            self.parts.optimizer.zero_grad(set_to_none=True)
            if self.processes.world_size == 1:
                self._backup()
            raise

    def _update(self) -> None:
        self.parts.update()

    def _backward(self, loss: torch.Tensor) -> None:
        if not loss.requires_grad:
            # prompts without the only trained word
            return
        scale = self.parts.scaler.scale * self.parts.loss_factor
        (loss if scale == 1.0 else loss * scale).backward()

    def _clip(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The norm of all gradients before clipping."""
        norm = self.parts.norm(gradients)
        limit = self.config.clip_grad_norm
        if limit and self.config.clip_each_weight:
            for parameter in self.parts.parameters:
                torch.nn.utils.clip_grad_norm_(parameter, limit)
        elif limit:
            torch.nn.utils.clip_grads_with_norm_(self.parts.parameters, limit, norm)
        return norm

    def _undefined(self, loss: float, norm: float) -> None:
        """Handle a NaN or infinite loss or gradient: keep the weights, and end the run after too many in a row."""
        self._counters.undefined_steps += 1
        partly = self.parts.partly_updated()
        where = f"step {self.progress.global_step}: " + (
            partly or f"the loss is {loss:g} and the gradient's norm {norm:g}"
        )
        if self._counters.undefined_steps <= self.config.nan_patience:
            self.callback.warning(where if partly else f"{where}; the step is skipped")
            if partly and self.parts.ema is not None:
                # most weights have moved, and the average follows them
                self.parts.ema.update(self.progress.global_step)
            return
        self.parts.optimizer.zero_grad(set_to_none=True)
        self._backup()
        raise DataError(
            f"{where}. Training ends here; a backup of the weights {'as they are' if partly else 'before this step'} "
            "was made",
            field="learning_rate",
            hint="lower the learning rate or beta, train in BFLOAT_16 or FLOAT_32 instead of FLOAT_16, or raise "
            "nan_patience",
        )

    def _advance(self, group: AccumulationGroup, metrics: dict[str, float] | None) -> None:
        """Log the finished step unless its numbers are read later, then advance."""
        self.progress.advance(group.total)
        self._pace.step()
        left = self._pace.seconds_left(self.total_steps - self.progress.global_step)
        used = memory(self.processes.device)
        if metrics is not None:
            self._log(self.progress, {**metrics, **used}, left)
        elif self._unread is not None:
            self._unread.after, self._unread.left = copy.copy(self.progress), left
            self._unread.more |= used
        if group.last:
            self.progress.next_epoch()

    def _log(self, progress: TrainProgress, metrics: dict[str, float], left: float | None) -> None:
        self.callback.step(progress, metrics, self.total_steps, left)
        for warning in self.parts.warnings():
            self.callback.warning(warning)

    # -- between steps -----------------------------------------------------------------------------------------

    def _do_what_is_due(self, epoch_ended: bool) -> None:
        wall = sum(
            interval.due(self.progress, epoch_ended) << bit
            for bit, (interval, _, possible) in enumerate(self._repeated())
            if possible
        )
        wall |= self._tenth_ends() << BACKUP_BIT
        # time intervals are not due in all processes at once
        self._count_and_do(self.processes.agree(wall))

    def _pass_empty_epochs(self, epoch: int) -> None:
        """Advance to an epoch, and do what was due at the ends of those before it that had no step: concepts may be
        repeated less than once per epoch, and all images of an epoch may be skipped.
        """
        before = self.progress.epoch
        if epoch <= before:
            return
        self.progress.epoch = epoch
        due = sum(
            interval.due_in_empty_epochs(before, epoch) << bit
            for bit, (interval, _, possible) in enumerate(self._repeated())
            if possible
        )
        with self._steps_kept():
            self._count_and_do(due)

    def _count_and_do(self, due: int) -> None:
        if not due:
            return
        # ends the run after an invalid step, before anything is counted
        self._read_step()
        self._counters.samples_due += due >> SAMPLE_BIT & 1
        self._counters.saves_due += due >> SAVE_BIT & 1
        self._do(due)

    def _repeated(self) -> tuple[tuple[Interval, Callable[[], object], bool], ...]:
        """Work that repeats in intervals, and whether this run has any of it, in its order at a step. A backup is last,
        because it contains the results of the others.
        """
        parts = self.parts
        return (
            (self._validation_interval, self._validate, parts.validation is not None),
            (self._sample_interval, self._sample_unless_skipped, len(parts.sampler) > 0),
            (self._save_interval, self._save_unless_skipped, True),
            (self._backup_interval, partial(self._backup, must=False), True),
        )

    def _do(self, due: int) -> None:
        """Do what is due at this step.

        Args:
            due: bits for ``_repeated``. The counters contain those that are not done yet, so that a backup that is
                written because one of them failed says what a resumed run must do, see ``_do_what_was_left``.
        """
        counters = self._counters
        counters.due_at = self.progress.global_step
        for bit, (interval, act, _) in enumerate(self._repeated()):
            counters.due = due >> bit << bit & ~(1 << BACKUP_BIT)
            if due >> bit & 1:
                interval.restart()
                act()
        counters.due, counters.due_at = 0, -1

    def _do_what_was_left(self) -> None:
        """Do what was due at the step of the backup and not done, unless it is not wanted any more."""
        counters = self._counters
        if counters.due_at == self.progress.global_step:
            wanted = [
                possible and interval.unit is not TimeUnit.NEVER for interval, _, possible in self._repeated()
            ]
            self._do(sum(counters.due & one << bit for bit, one in enumerate(wanted)))

    def _sample_unless_skipped(self) -> None:
        if self._counters.samples_due > self.config.sample_skip_first:
            self._try(self._sample)

    def _save_unless_skipped(self) -> None:
        if self._counters.saves_due > self.config.save_skip_first:
            self._try(self._save_on_the_way)

    def _tenth_ends(self) -> bool:
        """Return whether a backup is due in addition to those by time, so that a kill costs at most a
        tenth of the run.
        """
        by_the_clock = self._backup_interval.in_time and self.config.backup_each_tenth
        return by_the_clock and ends_a_tenth(self.progress.global_step, self.total_steps)

    def _try(self, act: Callable[[], str]) -> None:
        """Run work that may fail: a full disk costs a sample, not the run."""
        try:
            act()
        except UserError as error:
            self.callback.warning(str(error))

    def _obey(self, wishes: int) -> bool:
        """Execute the commands. Returns whether to stop."""
        if wishes:
            self._read_step()
        if wishes & PAUSE:
            self.callback.phase("paused", 0, 0)
            # commands that came with the pause are executed during it
            wishes = self._commands.wait_while_paused(self._carry_out)
            self._pace.leave_out()
        if wishes & RESUME:
            self._commands.done(RESUME)
        self._carry_out(wishes)
        return bool(wishes & STOP)

    def _carry_out(self, wishes: int) -> None:
        for bit, act in (
            (SAMPLE, self._sample),
            (SAVE, self._save_on_the_way),
            (BACKUP, self._backup),
        ):
            if not wishes & bit:
                continue
            try:
                message = act()
            except UserError as error:
                self._commands.failed(bit, str(error))
                self.callback.warning(str(error))
            else:
                self._commands.done(bit, message)

    def _validate(self) -> None:
        parts = self.parts
        assert parts.validation is not None
        self._read_step()
        with parts.exported_weights():
            values = parts.validation.run()
            if parts.best is not None:
                parts.best.offer(
                    self.progress.global_step, values["dpo/val_accuracy"], values["dpo/val_loss"]
                )
        self.callback.validation(self.progress, values)
        if parts.patience is not None:
            verdict = parts.patience.update(
                {tag.removeprefix("dpo/"): value for tag, value in values.items()}
            )
            if verdict.undefined:
                self.callback.warning(
                    f"{', '.join(verdict.undefined)} is NaN or infinite; counted as no progress"
                )
            if verdict.stop:
                self.callback.warning(
                    f"{', '.join(verdict.stalled)} did not improve in {verdict.counter} validations: training stops"
                )
        self._counters.validated_at = self.progress.global_step
        self._pace.leave_out()

    def _out_of_patience(self) -> bool:
        patience = self.parts.patience
        return patience is not None and patience.counter >= patience.value

    def _sample(self) -> str:
        """Make the samples with the moving average and, if requested, also without it. Returns their paths."""
        if not len(self.parts.sampler):
            return "there are no samples to make"
        self._read_step()
        with self._others_waiting():
            if self.processes.first:
                with self.parts.acceleration.evaluation(), self.parts.exported_weights():
                    self._make_samples("")
                if self.parts.ema is not None and self.config.non_ema_sampling:
                    with self.parts.acceleration.evaluation(), self.parts.exported_weights(averaged=False):
                        self._make_samples(" - no-ema")
        self._pace.leave_out()
        return str(self.run_directory.samples_dir)

    def _make_samples(self, suffix: str) -> None:
        for number, prompt, path in self.parts.sampler.run(self.progress, suffix, self._tell):
            self.callback.sample(self.progress, path, prompt, number)

    # -- saving ------------------------------------------------------------------------------------------------

    def _save_on_the_way(self) -> str:
        self._read_step()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        name = f"{self.config.save_filename_prefix}{stamp}-save-{self.progress.label()}"
        self._note_average()
        with self.parts.exported_weights():
            path = self._save(self.run_directory.save_dir / f"{name}.safetensors")
        self._pace.leave_out()
        return str(path)

    def _note_average(self) -> None:
        """Say so if the weights to be saved are not averaged although an average is kept."""
        average, steps = self.parts.ema, self.progress.global_step
        if average is not None and not average.begun and steps:
            self.callback.warning(
                f"the moving average has not been updated in {counted(steps, 'step')} (ema_update_step_interval is "
                f"{average.interval}), so the trained weights are saved without averaging"
            )

    def _save(self, path: Path) -> Path:
        """Write the model with the current weights, in the first process only."""
        parts, config = self.parts, self.config
        if not self.processes.first:
            return path
        facts = parts.facts(self.progress.global_step)
        dtype = torch_dtype(config.output_dtype, "output_dtype")
        with refused_as(
            f"the model cannot be saved to {path}",
            field="output_model_destination",
            hint="free some space or choose another place, then resume with continue_last_backup",
        ):
            made = training.save(
                parts.model,
                path,
                config.output_model_format,
                dtype,
                facts,
                training.place_of_words(config),
            )
        self.callback.saved(self.progress, made)
        return made

    def _backup(self, must: bool = True) -> str:
        """Write a backup. A backup by time may fail, and is retried at the next interval."""
        self._read_step()
        path: Path | None = None
        # every process adds images of its own
        rollout = self.parts.loader.snapshot(self.progress)
        with self._others_waiting():
            if self.processes.first:
                keep = self.config.rolling_backup_count if self.config.rolling_backup else None
                try:
                    path = write_backup(
                        self.run_directory.backup_dir,
                        take_snapshot(self.parts, self._begun_with, self.progress, self._counters, rollout),
                        keep,
                    )
                except UserError as error:
                    if must:
                        raise
                    self.callback.warning(str(error))
                else:
                    self.callback.backup(self.progress, path)
        self._pace.leave_out()
        return str(path or "")

    def _free(self) -> None:
        self.parts.optimizer.zero_grad(set_to_none=True)

    def _rescue_backup(self) -> None:
        """Write a backup before the run ends, if any step was taken since the last one."""
        if self.processes.world_size > 1 or not self.progress.global_step:
            # other processes do not know of this one's error and would be waited for
            return
        known = {path.name.partition("-backup-")[2] for path in list_backups(self.run_directory.backup_dir)}
        if self.progress.label() not in known:
            self._backup(must=False)

    @contextmanager
    def _steps_kept(self) -> Iterator[None]:
        """If an image, a file or the disk fails in the block, write a backup before the error ends the run."""
        try:
            yield
        except UserError:
            self._rescue_backup()
            raise

    @contextmanager
    def _others_waiting(self) -> Iterator[None]:
        """Make the other processes wait after the block, even if the first one has an error that the run survives."""
        try:
            yield
        except UserError:
            self.processes.barrier()
            raise
        self.processes.barrier()

    # -- telling -----------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        parts, processes = self.parts, self.processes
        self._pace.leave_out()
        self.callback.started(
            {
                "pid": os.getpid(),
                "model_type": self.config.model_type.value,
                "base_model_commit": parts.model.hub_commits,
                "method": self.config.training_method.value,
                "units": len(parts.loader),
                "pairs": self.config.trains_pairs,
                "trained_parameters": sum(p.numel() for p in parts.parameters),
                "device": str(processes.device),
                "processes": processes.world_size,
                "total_steps": self.total_steps,
                "progress": self.progress.to_dict(),
                "resumed_from": None if self._resumed_from is None else self._resumed_from.name,
            }
        )

    def _tell(self, what: str, done: int, total: int) -> bool:
        """Report progress of long work; ``False`` cancels it. With several processes, it continues until the
        next step.
        """
        now = time.monotonic()
        if done == total or now - self._last_phase > PHASE_SECONDS:
            self._last_phase = now
            self.callback.phase(what, done, total)
        return self.processes.world_size > 1 or not self._commands.stop_wanted()
