"""Update rules: how the servers of a table change its values by what is pushed. See `tutti_table(3)` for the equations.

Options that a rule's function does not name are given by keyword: scale, weight_decay, momentum, rho, compensation,
beta1, beta2, epsilon, alpha, beta, l1, l2. What is not given is as the docstring says; the default of scale is 1, of
all other options that the docstring does not name 0.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

from ._call import NULL, ffi, lib

NAN = float("nan")
OPTIONS = ("scale", "learning_rate", "weight_decay", "momentum", "rho", "compensation", "beta1", "beta2", "epsilon",
           "alpha", "beta", "l1", "l2")

_RULES: Dict[str, Tuple[Callable[..., Any], Tuple[str, ...]]] = {  # and the options that the library's function takes
    "accumulate": (lib.tutti_accumulate, ()),
    "assign": (lib.tutti_assign, ()),
    "sgd": (lib.tutti_sgd, ("learning_rate",)),
    "momentum": (lib.tutti_momentum, ("learning_rate", "momentum")),
    "smoothed": (lib.tutti_smoothed, ("learning_rate", "momentum")),
    "nesterov": (lib.tutti_nesterov, ("learning_rate", "momentum")),
    "adagrad": (lib.tutti_adagrad, ("learning_rate",)),
    "rmsprop": (lib.tutti_rmsprop, ("learning_rate",)),
    "adam": (lib.tutti_adam, ("learning_rate",)),
    "adamw": (lib.tutti_adamw, ("learning_rate", "weight_decay")),
    "dcasgd": (lib.tutti_dcasgd, ("learning_rate", "compensation")),
    "dcasgda": (lib.tutti_dcasgda, ("learning_rate", "compensation")),
    "ftrl": (lib.tutti_ftrl, ("alpha",)),
    "elastic": (lib.tutti_elastic, ("alpha",)),
}


def _set(to: Any, options: Dict[str, float]) -> None:
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError("no option of an update rule is called %r: use %s" % (name, ", ".join(OPTIONS)))
        setattr(to, name, value)


def push_options(options: Dict[str, Any]) -> Any:
    """A tutti_update of a push's keywords, or NULL: as the table has them. worker: whose state."""
    if not options:
        return NULL
    update = ffi.new("tutti_update *", lib.tutti_update_defaults())
    update.worker = options.pop("worker", -1)
    _set(update, options)
    return update


class Updater:
    """A rule, and its options for all pushes. A push may give options of its own."""

    def __init__(self, rule: str, options: Dict[str, float], flags: int = 0) -> None:
        self.rule, self.options, self._flags = rule, options, flags
        self._struct()  # refuses options that do not exist

    def _struct(self) -> Any:
        make, named = _RULES[self.rule]
        c = make(*(NAN for _ in named))
        _set(c.defaults, self.options)
        c.flags = self._flags
        return c

    def __repr__(self) -> str:
        return "tutti.%s(%s)" % (self.rule, ", ".join("%s=%r" % o for o in self.options.items()))


def _struct_of(updater: Updater) -> Any:
    """A tutti_updater of what a program has given as a rule."""
    if not isinstance(updater, Updater):
        raise ValueError("a table's rule is made by a function of tutti.update, tutti.adam(0.001) say, and is not %r"
                         % (updater,))
    return updater._struct()


def _made(rule: str, options: Dict[str, float], flags: int = 0, **named: float) -> Updater:
    return Updater(rule, {**{name: value for name, value in named.items() if value == value}, **options}, flags)


def accumulate(**options: float) -> Updater:
    """Adds: w += scale d."""
    return _made("accumulate", options)


def assign() -> Updater:
    """Sets: w = d."""
    return _made("assign", {})


def sgd(learning_rate: float = NAN, **options: float) -> Updater:
    """Gradient descent: learning_rate 1. Takes weight_decay."""
    return _made("sgd", options, learning_rate=learning_rate)


def momentum(learning_rate: float = NAN, momentum: float = NAN, **options: float) -> Updater:
    """Momentum as PyTorch writes it: learning_rate 1, momentum 0.9. Takes weight_decay. Polyak 1964."""
    return _made("momentum", options, learning_rate=learning_rate, momentum=momentum)


def smoothed(learning_rate: float = NAN, momentum: float = NAN, **options: float) -> Updater:
    """A running mean of the gradients: learning_rate 1, momentum 0. Takes weight_decay. Multiverso's momentum_sgd."""
    return _made("smoothed", options, learning_rate=learning_rate, momentum=momentum)


def nesterov(learning_rate: float = NAN, momentum: float = NAN, **options: float) -> Updater:
    """Nesterov's momentum: learning_rate 1, momentum 0.9. Takes weight_decay. Sutskever et al., ICML 2013."""
    return _made("nesterov", options, learning_rate=learning_rate, momentum=momentum)


def adagrad(learning_rate: float = NAN, shared_state: bool = False, **options: float) -> Updater:
    """AdaGrad: learning_rate 0.01, epsilon 1e-6. Takes weight_decay. Duchi et al., JMLR 2011.

    shared_state: one state for all workers, instead of one for each.
    """
    return _made("adagrad", options, lib.TUTTI_SHARED_STATE if shared_state else 0, learning_rate=learning_rate)


def rmsprop(learning_rate: float = NAN, **options: float) -> Updater:
    """RMSProp: learning_rate 0.01, rho 0.99, epsilon 1e-8. Takes weight_decay. Tieleman and Hinton 2012."""
    return _made("rmsprop", options, learning_rate=learning_rate)


def adam(learning_rate: float = NAN, **options: float) -> Updater:
    """Adam: learning_rate 0.001, beta1 0.9, beta2 0.999, epsilon 1e-8. Takes weight_decay. Kingma and Ba 2014."""
    return _made("adam", options, learning_rate=learning_rate)


def adamw(learning_rate: float = NAN, weight_decay: float = NAN, **options: float) -> Updater:
    """AdamW: as adam, with weight_decay 0.01. Loshchilov and Hutter 2017."""
    return _made("adamw", options, learning_rate=learning_rate, weight_decay=weight_decay)


def dcasgd(learning_rate: float = NAN, compensation: float = NAN, backup_from_zero: bool = False,
           **options: float) -> Updater:
    """Delay-compensated SGD: learning_rate 0.01, compensation 0.1. Zheng et al. 2016, where it is lambda.

    backup_from_zero: what a worker is taken to have at first is 0, as Multiverso's was.
    """
    flags = lib.TUTTI_BACKUP_FROM_ZERO if backup_from_zero else 0
    return _made("dcasgd", options, flags, learning_rate=learning_rate, compensation=compensation)


def dcasgda(learning_rate: float = NAN, compensation: float = NAN, backup_from_zero: bool = False,
            **options: float) -> Updater:
    """The adaptive form of dcasgd: learning_rate 0.01, compensation 0.1, momentum 0.95, epsilon 1e-7."""
    flags = lib.TUTTI_BACKUP_FROM_ZERO if backup_from_zero else 0
    return _made("dcasgda", options, flags, learning_rate=learning_rate, compensation=compensation)


def ftrl(alpha: float = NAN, **options: float) -> Updater:
    """Follow the regularized leader: alpha 0.005, beta 1, l1 0, l2 0. McMahan et al., KDD 2013."""
    return _made("ftrl", options, alpha=alpha)


def elastic(alpha: float = NAN, **options: float) -> Updater:
    """Elastic averaging: alpha 0.5. What is pushed are parameters, and push_pull gives the move. Zhang et al. 2014."""
    return _made("elastic", options, alpha=alpha)


class Init:
    """The values that a table begins with instead of 0: made by uniform() or normal()."""

    def __init__(self, kind: str, *args: Any) -> None:
        self._kind, self._args = kind, args
        self._struct()

    def _struct(self) -> Any:
        make = lib.tutti_init_uniform if self._kind == "uniform" else lib.tutti_init_normal
        return make(*self._args)

    def __repr__(self) -> str:
        return "tutti.%s(%s)" % (self._kind, ", ".join(map(repr, self._args)))


def uniform(a: float, b: float, seed: int = 0) -> Init:
    """Values from a to b, finite. Value j of row (or key) r depends on seed, r and j alone."""
    return Init("uniform", a, b, seed)


def normal(sigma: float, seed: int = 0) -> Init:
    """Normal values of mean 0 and standard deviation sigma, from 0 up. They depend on seed, row and place alone."""
    return Init("normal", sigma, seed)
