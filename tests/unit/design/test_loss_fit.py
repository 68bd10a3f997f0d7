"""The regression of losses, against planted coefficients and against simulated measurements."""

import numpy as np
import pytest

from comera_dist.design.loss_fit import EXPONENTS, Features, LossFit, measured_fit

# Each term is about a third of a nat at NEW.
COEFFICIENTS = {name: 0.3 * size for name, size in zip(EXPONENTS, (23.0, 70.0, 2.0, 3e5, 5e6), strict=True)}
OF_FORMAT = {"dense": 0.0, "block_train": -0.05, "shared": 0.1}
NEW = Features(matrices=300_000, width=70, layers=4, vocabulary=300_000, tokens=5_000_000, format="block_train")


def planted(model):
    terms = (COEFFICIENTS[name] * getattr(model, name) ** -power for name, power in EXPONENTS.items())
    return 3 + OF_FORMAT[model.format] + sum(terms)


def random_models(count, random, **constant):
    draw = {
        "matrices": lambda: int(random.integers(10_000, 900_000)),
        "width": lambda: int(random.integers(32, 200)),
        "layers": lambda: int(random.integers(2, 9)),
        "vocabulary": lambda: int(random.integers(60_000, 600_000)),
        "tokens": lambda: int(random.integers(1_000_000, 16_000_000)),
        "format": lambda: str(random.choice(list(OF_FORMAT))),
    }
    return tuple(Features(**({name: f() for name, f in draw.items()} | constant)) for _ in range(count))


def fit_of(models, noise=0.0, random=None):
    return LossFit(
        "made-up data", models, tuple(planted(m) + (random.normal(0, noise) if noise else 0) for m in models)
    )


def test_planted_coefficients_are_found():
    fit = fit_of(random_models(20, np.random.default_rng(0)))
    found = fit.predict(NEW)
    assert found.loss == pytest.approx(planted(NEW))
    assert found.error < 1e-6
    assert found.outside == ()


def test_the_error_is_that_of_a_new_model():
    """Over many sets of noisy measurements, (new loss − prediction) / error has a variance near one."""
    random, noise, ratios = np.random.default_rng(1), 0.02, []
    models = random_models(24, random)
    for _ in range(400):
        found = fit_of(models, noise, random).predict(NEW)
        ratios.append((planted(NEW) + random.normal(0, noise) - found.loss) / found.error)
    # Student's t with 24 - 8 degrees of freedom has the variance 16/14; 0.25 is four of its standard errors here.
    assert np.var(ratios) == pytest.approx(16 / 14, abs=0.25)
    assert abs(np.mean(ratios)) < 0.2


def test_an_extrapolation_is_less_certain_and_named():
    random = np.random.default_rng(2)
    fit = fit_of(random_models(24, random), 0.02, random)
    far = NEW._replace(width=4096, tokens=10**5)
    assert fit.predict(far).error > 3 * fit.predict(NEW).error
    assert fit.predict(far).outside == ("width", "tokens")


def test_a_format_that_was_not_measured_is_named():
    fit = fit_of(random_models(20, np.random.default_rng(6), format="dense"))
    assert fit.predict(NEW).outside == ("format",)


def test_a_quantity_that_was_not_varied_has_no_effect_but_is_named():
    random = np.random.default_rng(3)
    fit = fit_of(random_models(20, random, layers=4))
    other = fit.predict(NEW._replace(layers=8))
    assert other.loss == pytest.approx(fit.predict(NEW).loss)
    assert other.outside == ("layers",)


def test_too_few_models_give_no_scatter():
    with pytest.raises(AssertionError, match="more models than coefficients"):
        fit_of(random_models(7, np.random.default_rng(4))).predict(NEW)


def test_a_fit_survives_json():
    fit = fit_of(random_models(9, np.random.default_rng(5)))
    assert LossFit.read(fit.write()) == fit


def test_the_measured_models_determine_all_coefficients():
    """No measured model is far from the regression, and none would be missed."""
    fit = measured_fit()
    assert len(fit.models) == len(set(fit.models))
    for index, (model, loss) in enumerate(zip(fit.models, fit.losses, strict=True)):
        without = fit.without(index).predict(model)
        assert abs(without.loss - loss) < 4 * without.error
