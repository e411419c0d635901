"""Training runs, in PyTorch and in JAX.

From the command to the kernel, a step passes through

1. `tmm_lab.cli.train`: options become configurations;
2. `session`: `begin` makes the folder of a run (`runs`) with its texts (`data`), `resume` opens one, each as a `Job`;
3. `torch.runtime` or `jax.runtime`: devices and processes, and the `Trainer` of the job;
4. `loop.Loop.run`: steps, records, evaluations and checkpoints, the same for both frameworks;
5. `torch.trainer` or `jax.trainer`: one step of the optimiser, on the model that the architecture makes
   (`tmm_adapters.architecture`; of a TMM `tmm_adapters.torch.model` or `tmm_adapters.jax.model`);
6. `tmm_core.mix_tokens`, once a layer: arguments are checked, and `tmm_core._dispatch.choice` takes an engine;
7. the bridge of the arrays' library (`tmm_backends._torch.bridge`, `tmm_backends._jax.bridge`): gradients and tracing;
8. the engine, such as `tmm_backends._numba.engine`, and its kernels (`product_kernels`).
"""
