"""Training in PyTorch: what only it has, such as processes, services and generators of random numbers."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.training_runs import COMMON, ONE_THREAD, STEPS, recorded, records, unfinished, weights

from tmm_adapters.checkpoints import newest_intact
from tmm_adapters.pretrained import load_model, read_tensors
from tmm_adapters.tokenizers import ByteTokenizer
from tmm_core import TMMConfig
from tmm_lab.cli import main
from tmm_lab.data.dataset import evaluation_windows
from tmm_lab.data.text import open_text
from tmm_lab.data.tokens import bits_per_byte, write_tokens
from tmm_lab.evaluation.measure import held_out_nats
from tmm_lab.evaluation.torch_model import TorchModel
from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.runs import Run
from tmm_lab.training.torch import state as torch_state
from tmm_lab.training.torch.runtime import TorchRuntime, settings
from tmm_lab.training.torch.trainer import make_optimizer

pytestmark = pytest.mark.usefixtures("one_thread")


def test_no_file_of_a_run_is_a_pickle(in_torch: Path) -> None:
    suffixes = {path.suffix for path in in_torch.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".jsonl", ".md", ".png", ".py", ".safetensors", ".txt", ""}  # the text itself has none


def test_every_held_out_byte_is_paid_for_once(in_torch: Path, tmp_path: Path) -> None:
    """Against a sum over single windows by hand, and against the record of the run."""
    run = Run.open(in_torch)
    config = run.parsed().config
    model, _ = load_model(run.model, device="cpu")
    held_out = open_text(run.data / "text").split(400)[1]
    tokens = write_tokens(held_out, ByteTokenizer(), tmp_path / "tokens.npy")
    nats, done = 0.0, 1
    while done < len(tokens):  # half a context further each time, and the last window ends where the text ends
        stop = min(done + (config.max_len if done == 1 else config.max_len // 2), len(tokens))
        ids = torch.from_numpy(tokens[stop - config.max_len - 1 : stop].astype(np.int64))
        documents = torch.cumsum(ids == ByteTokenizer.end_of_text, 0)[None]
        logits = model(ids[None, :-1], segment_ids=documents[:, :-1])["logits"][0, done - stop :]
        nats += torch.nn.functional.cross_entropy(logits, ids[done - stop :], reduction="sum").item()
        done = stop
    windows = evaluation_windows(tokens, config.max_len, ByteTokenizer.end_of_text)
    whole = held_out_nats(TorchModel(model, config), windows, batch=3)
    assert whole == pytest.approx(nats, rel=1e-6)
    assert records(in_torch)[-1]["eval_bits_per_byte"] == pytest.approx(bits_per_byte(nats, held_out), rel=1e-6)
    halves = [held_out_nats(TorchModel(model, config), windows, batch=2, rank=rank, world=2) for rank in range(2)]
    assert sum(halves) == pytest.approx(whole, rel=1e-6)


# Interrupted and resumed


def test_kill_9_loses_the_time_since_the_last_checkpoint_only(
    in_torch: Path, arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "killed"
    code = """if True:
        import os, signal, sys
        from tmm_lab.cli import main
        from tmm_lab.training.torch.trainer import TorchTrainer
        original, steps = TorchTrainer.step, []
        def step(self, batch, factor):
            steps.append(factor)
            if len(steps) == 10:
                assert "transformers" not in sys.modules  # which takes seconds to import, and is not needed
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, batch, factor)
        TorchTrainer.step = step
        main(sys.argv[1:])
    """
    command = [sys.executable, "-c", code, *arguments("torch", out)]
    done = subprocess.run(command, capture_output=True, check=False, env=ONE_THREAD)
    assert done.returncode == -signal.SIGKILL
    assert main(["train", "--resume", str(out)]) == 0
    assert f"resuming from {out / 'checkpoints' / 'step-00000008'}" in capsys.readouterr().out
    assert weights(out) == weights(in_torch)
    last = f"checkpoints/step-{STEPS:08d}/optimizer.safetensors"
    assert (out / last).read_bytes() == (in_torch / last).read_bytes()


def test_hostile_pickles_in_a_checkpoint_do_not_run(in_torch: Path, tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (marker,))

    pickle.loads(pickle.dumps(Hostile()))
    assert marker.exists(), "the pickle is not hostile, and the test would prove nothing"
    marker.unlink()
    run = unfinished(in_torch, tmp_path / "run", steps=STEPS + 2)
    names = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth", "training_args.bin")
    for name in (*names, "pytorch_model.bin"):
        (run.checkpoints / "step-00000012" / name).write_bytes(pickle.dumps(Hostile()))
        torch.save(Hostile(), run.checkpoints / "step-00000008" / name)
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert not marker.exists()


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    torch.manual_seed(5)
    torch_state.write_random(tmp_path)
    expected = torch.rand(3)
    torch.manual_seed(6)
    torch_state.read_random(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_evaluations_and_samples_disturb_no_random_numbers(in_torch: Path) -> None:
    """The generator that a run leaves is the one that its seed began: nothing has drawn from it."""
    newest = in_torch / "checkpoints" / "step-00000012" / "random.safetensors"
    torch.manual_seed(3)
    assert torch.equal(read_tensors(newest, "pt")["cpu"], torch.get_rng_state())


# Options


def test_only_linear_maps_decay() -> None:
    from tmm_adapters.tmm import TMM

    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16, final_norm=True, frozen="lags")
    options = TrainingOptions(weight_decay=0.3)
    job = SimpleNamespace(architecture=TMM(), config=config, options=options, learning_rate=0.01)
    model = TMM().torch_model(config, seed=0)
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, others = make_optimizer(job, model).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    projections = ["mix.in_proj", "mix.out_proj", "mlp.down", "mlp.up"]
    expected = {*(f"blocks.0.{name}.weight" for name in projections), "unembed.weight"}
    assert {names[id(p)] for p in decayed["params"]} == expected
    assert {names[id(p)] for p in others["params"]} == set(names.values()) - expected - {"blocks.0.mix.lags"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")  # PyTorch's own compiler
def test_a_compiled_model_trains_the_same_run(
    arguments: Callable[..., list[str]], in_torch: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert main(arguments("torch", out, "--compile")) == 0
    ours, theirs = recorded(out, "loss"), recorded(in_torch, "loss")
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)


@pytest.mark.parametrize(
    "variables",
    [
        {"LOCAL_RANK": "0"},
        {"RANK": "1", "WORLD_SIZE": "2", "PMI_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"},
        {
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3",
            "ACCELERATE_DYNAMO_BACKEND": "eager",
            "ACCELERATE_USE_FSDP": "true",
            "ACCELERATE_USE_CPU": "nonsense",
            "ACCELERATE_TORCH_DEVICE": "meta",
        },
    ],
)
def test_what_the_environment_says_to_libraries_changes_no_run(
    variables: dict[str, str],
    arguments: Callable[..., list[str]],
    in_torch: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(arguments("torch", tmp_path / "run")) == 0
    assert "cpu, 1 thread, float32" in capsys.readouterr().out
    assert weights(tmp_path / "run") == weights(in_torch)
    assert {name: os.environ[name] for name in variables} == variables, "they are the user's"


def test_an_environment_that_forbids_what_is_asked_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with pytest.raises(ValueError, match="TORCH_COMPILE_DISABLE=1 in the environment keeps --compile"):
        settings(TrainingOptions(compile=True)).__enter__()


# Several processes


@pytest.mark.parametrize("failure", [ValueError("the text is empty"), KeyboardInterrupt("the text is empty")])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_the_first_process_is_told_once(
    rank: int, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broadcast(box: list[object], src: int) -> None:
        sent.append(list(box))
        box[:] = [None, True]

    def failing() -> None:
        raise failure

    sent: list[list[object]] = []
    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    runtime = TorchRuntime(SimpleNamespace(num_processes=2, process_index=rank))
    with pytest.raises(type(failure) if rank == 0 else SystemExit, match="the text is empty" if rank == 0 else "2"):
        runtime.in_first_process(failing)
    assert sent == [[None, rank == 0]], "the others are told, not left to wait"


@pytest.mark.slow
def test_two_processes_train_one_run(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "two"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    tmm = [sys.executable, "-c", "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"]
    options = ["train", "--text", str(text), "--steps", "4", "--evaluations", "2", "--log-every", "1", *COMMON]
    done = subprocess.run(
        [*command, *tmm, *options, "--out", str(out)], capture_output=True, text=True, check=False, env=ONE_THREAD
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Toeplitz MLP Mixer") == 1, "only the first process speaks"
    assert "2 processes" in done.stdout
    # Two processes with two sequences each do what one does with four.
    alone = tmp_path / "one"
    assert main([*options, "--out", str(alone), "--accumulate", "2"]) == 0
    for name in ("loss", "grad_norm", "eval_bits_per_byte", "tokens"):
        ours, theirs = recorded(out, name), recorded(alone, name)
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5, err_msg=name)
    a, b = (read_tensors(folder / "model" / "model.safetensors") for folder in (out, alone))
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_two_processes_go_on_after_the_samples_of_one(in_torch: Path, tmp_path: Path) -> None:
    run = unfinished(in_torch, tmp_path / "run", step=8)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    tmm = [sys.executable, "-c", "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"]
    done = subprocess.run(
        [*command, *tmm, "train", "--resume", str(run.folder)],
        capture_output=True,
        text=True,
        check=False,
        env=ONE_THREAD,
    )
    assert done.returncode == 0, done.stderr
    assert "tmm: a step trains on 8 samples here, and did on 4:" in done.stderr
    expected = {step: (4 * step if step <= 8 else 4 * 8 + 8 * (step - 8)) * 16 for step in range(1, STEPS + 1)}
    assert recorded(run.folder, "tokens") == expected
    assert f"trained on   {expected[STEPS]:,} tokens" in done.stdout


SIGNALLED = """
import os, signal, sys
from tmm_lab.cli import main
from tmm_lab.training.torch.trainer import TorchTrainer
original, steps = TorchTrainer.step, []
def step(self, batch, factor):
    steps.append(factor)
    if len(steps) == 3 and os.environ["RANK"] == os.environ["SIGNALLED"]:
        os.kill(os.getpid(), signal.SIGTERM)
    return original(self, batch, factor)
TorchTrainer.step = step
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_of_two_processes_ends_both(
    rank: int, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = {**ONE_THREAD, "SIGNALLED": str(rank), "WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    # Without torchrun, which kills the other processes as soon as one has ended.
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SIGNALLED, *arguments("torch", out)],
            env={**env, "RANK": str(each), "LOCAL_RANK": str(each)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [143, 143]
    assert "saved after step 3; to go on" in said[0]
    assert said[1] == ""
    assert newest_intact(out / "checkpoints") == (out / "checkpoints" / "step-00000003", [])
