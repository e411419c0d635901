"""The JAX model over several devices computes what one device does."""

import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from tmm_adapters.jax.sharding import check_mesh, shardings
from tmm_core import TMMConfig


@pytest.mark.slow
def test_a_mesh_shares_the_loss_the_gradients_and_the_steps():
    """Four devices of this machine's CPU: the number is set before JAX is imported, hence a process of its own."""
    run(
        """
        import dataclasses, sys
        sys.path.insert(0, "tests")
        import jax, numpy as np
        from jax.sharding import Mesh
        from support.model_variants import VARIANTS, random_ids, random_params
        from tmm_adapters import jax as model
        from tmm_adapters.jax.sharding import shardings

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_disable_most_optimizations", True)

        def check(name, shape, backend, **batch):
            config = dataclasses.replace(VARIANTS[name], n_layers=1)
            mesh = Mesh(np.reshape(jax.devices(), shape), ("data", "model"))
            by_name, rows = shardings(config, mesh)
            first = random_params(config)
            adamw = model.optimizer(config, learning_rate=0.01, clip=0.1)
            batch = {"input_ids": random_ids(config, (4, 12)), **batch}

            def step(mesh, place, place_batch):
                params = place(model.from_params(first, config))
                state = adamw.init(params)
                results = model.train_step(
                    params, state, place_batch(batch), config, adamw, mesh=mesh, backend=backend
                )
                jax.block_until_ready(results)
                return results

            alone = step(None, lambda params: params, lambda batch: batch)
            spread = step(
                mesh,
                lambda params: jax.device_put(params, by_name),
                lambda batch: {key: jax.device_put(array, rows) for key, array in batch.items()},
            )
            for (path, ours), (_, theirs) in zip(*map(jax.tree_util.tree_leaves_with_path, (spread, alone))):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{name} {path}")
            params, state, _ = spread
            for key, p in params.items():
                assert p.sharding.is_equivalent_to(by_name[key], p.ndim), (name, key, p.sharding)
            mu = state[1].mu["blocks.0.mlp.up.weight"]
            assert mu.sharding.is_equivalent_to(by_name["blocks.0.mlp.up.weight"], 2)
            mixed = by_name["blocks.0.mix.lags"].spec
            return len({str(shard.index) for shard in mu.addressable_shards}), tuple(mixed)

        segments = np.asarray([[0] * 5 + [1] * 7] * 4)
        assert check("heads", (2, 2), "numba") == (2, ("model",))
        assert check("later", (2, 2), "jax", segment_ids=segments) == (2, ("model",))
        assert check("kernel", (1, 4), "numba") == (4, ())
        """
    )


def test_what_the_mesh_does_not_divide_is_whole():
    mesh = Mesh(np.reshape(jax.devices()[:1], (1, 1)), ("data", "model"))
    by_name, rows = shardings(TMMConfig(d_model=8, n_heads=2), mesh)
    assert tuple(by_name["blocks.0.mlp.down.weight"].spec) == (None, "model")
    assert tuple(by_name["blocks.0.mix_norm.weight"].spec) == ()
    assert tuple(rows.spec) == ("data",)


def test_meshes_of_other_kinds_are_refused():
    devices = np.reshape(jax.devices()[:1], (1, 1))
    with pytest.raises(ValueError, match=r"mesh must have the axes 'data' and 'model'"):
        check_mesh(Mesh(devices, ("data", "heads")), 4)
    with pytest.raises(ValueError, match="of the type Auto"):
        check_mesh(Mesh(devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2), 4)


def test_a_mesh_that_does_not_divide_the_batch_is_refused():
    run(
        """
        import jax, numpy as np
        from jax.sharding import Mesh
        from tmm_adapters import jax as model
        from tmm_core import TMMConfig

        config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
        mesh = Mesh(np.reshape(jax.devices(), (4, 1)), ("data", "model"))
        model.apply(model.init(config), np.ones((6, 8), int), config, mesh=mesh)
        """,
        fails="the mesh does not divide the batch: 6 rows over 4 devices of the axis 'data'; take a batch that",
    )


def run(code: str, *, fails: str | None = None) -> None:
    """Run code in a process of its own, where JAX has four devices."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        check=False,
        timeout=200,
    )
    assert bool(done.returncode) == (fails is not None), done.stderr
    assert fails is None or fails in done.stderr
