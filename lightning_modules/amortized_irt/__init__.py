"""Item response models on batches of answers; language models that write questions of given difficulty.

- ``marginal``: likelihoods at known abilities and with abilities integrated out,
- ``item_parameters``: parameters of the items, and networks that read difficulties off their inputs,
- ``gathering``: sums and rows over several processes,
- ``module``: the LightningModule of answers;

- ``objectives``: log-probabilities, advantages, the losses of PPO and DPO,
- ``sampling``: answers drawn token by token from given random numbers,
- ``difficulty``: the function that says how hard a question is,
- ``language_model``: models from plain values or by name, adapters, references,
- ``policy``: a model, its reference and its value head,
- ``settings``: what the generator checks before any work,
- ``writer``: samples, their predicted difficulty, the best of several,
- ``stages``: the training steps of supervised fine-tuning, PPO and DPO,
- ``optimizing``: optimizers by name, the cosine schedule,
- ``generator``: the LightningModule.
"""
