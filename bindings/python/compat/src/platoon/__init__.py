"""Platoon's names on Tutti: a controller answers its workers, who train one model, on one host.

Modules: `platoon.channel` (Controller, Worker), `platoon.param_sync` and `platoon.training.global_dynamics` (rules),
`platoon.configparser` (hosts and devices). The program platoon-launcher starts a controller, which starts its workers.
docs/migrate.md says what differs from Platoon.
"""
