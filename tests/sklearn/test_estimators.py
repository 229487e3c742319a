"""Both estimators with the data, tools and habits of scikit-learn's users."""

import io
import pickle
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import VotingRegressor
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import choral
from choral.sklearn import EnsembleClassifier, EnsembleRegressor

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3))
Y = 2e5 + 3e4 * X[:, 0] + 1e3 * DRAW.normal(size=60)
WORDS = np.where(X[:, 1] > 0, "up", "down")


def regressor(**options):
    return EnsembleRegressor(**{"method": "packed", "random_state": 0, "epochs": 60} | options)


def classifier(**options):
    return EnsembleClassifier(**{"method": "packed", "random_state": 0, "epochs": 60} | options)


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y)


@pytest.fixture(scope="module")
def classed():
    return classifier().fit(X, WORDS)


@pytest.fixture(scope="module")
def frame():
    draw = np.random.default_rng(2)
    rows = 90
    town = draw.choice(["Ulm", "Bonn", "Kiel"], rows)
    return pd.DataFrame(
        {
            "rooms": np.where(draw.random(rows) < 0.1, np.nan, draw.integers(1, 9, rows)),
            "town": pd.Categorical(town),
            "floor": pd.Categorical(draw.choice([1, 2, 3], rows)),
            "size": draw.choice(["small", "medium", "large"], rows),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, rows), unit="D"),
            "garden": draw.random(rows) < 0.5,
            "level": pd.array(draw.integers(0, 5, rows), dtype="Int64"),
            "price": 1e5 * (town == "Bonn") + 2e4 * draw.random(rows) + 1e5,
        }
    )


class TestPredictions:
    def test_targets_of_any_size_are_predicted_in_their_own_units(self, fitted):
        mean, std = fitted.predict(X, return_std=True)
        assert fitted.score(X, Y) > 0.9
        assert mean.dtype == std.dtype == np.float64
        assert std.min() > 100
        assert std.max() < 1e5

    @pytest.mark.slow
    @pytest.mark.parametrize("far", [1e9, 1e12])
    def test_targets_that_single_precision_cannot_tell_apart_are_learned(self, far):
        y = np.round((Y - 2e5) / 1e4)
        near, there = (regressor().fit(X, y + off).predict(X) - off for off in (0.0, far))
        assert np.allclose(near, there, atol=0.1)

    def test_they_are_those_of_the_ensemble(self, fitted):
        said = fitted.ensemble_.predict(fitted.ensemble_.table.inputs(pd.DataFrame(X, columns=["x0", "x1", "x2"])))
        assert isinstance(fitted.ensemble_, choral.Ensemble)
        assert np.allclose(said.mean, fitted.predict(X), rtol=1e-6)

    def test_quantiles_are_where_the_mixture_has_them(self, fitted):
        from scipy.stats import norm

        found = fitted.predict_quantiles(X[:5], [0.1, 0.5, 0.9])
        table = fitted.ensemble_.table
        said = fitted.ensemble_._predictive(
            table.inputs(pd.DataFrame(X[:5], columns=["x0", "x1", "x2"])), precision="fp64"
        )
        means, deviations = said.member_means[..., 0].numpy(), said.member_variances[..., 0].sqrt().numpy()
        for i, level in enumerate([0.1, 0.5, 0.9]):
            assert np.allclose(norm.cdf(found[:, i], means, deviations).mean(0), level, atol=1e-6)
        low, high = fitted.predict_interval(X[:5], level=0.8)
        assert np.allclose(found[:, [0, 2]], np.column_stack([low, high]))
        assert fitted.predict_quantiles(X[:5], 0.5).shape == (5, 1)

    def test_the_parts_of_a_variance_add_up(self, fitted):
        parts = fitted.predict_uncertainty(X)
        assert np.allclose(parts.total, parts.aleatoric + parts.epistemic)
        assert np.allclose(np.sqrt(parts.total), fitted.predict(X, return_std=True)[1])
        assert (parts["epistemic"] > 0).all()

    def test_the_parts_of_an_entropy_add_up(self, classed):
        parts = classed.predict_uncertainty(X)
        probs = classed.predict_proba(X)
        assert np.allclose(parts.total, -(probs * np.log(probs)).sum(1))
        assert np.allclose(parts.total, parts.aleatoric + parts.epistemic, atol=1e-9)

    def test_classes_keep_their_names_and_order(self, classed):
        assert classed.classes_.tolist() == ["down", "up"]
        assert (classed.predict(X) == WORDS).mean() > 0.9
        assert np.allclose(np.exp(classed.predict_log_proba(X)), classed.predict_proba(X))

    @pytest.mark.parametrize("labels", [[True, False], [-1, 1], [0.0, 2.0], [10**12, 3]])
    def test_classes_may_be_any_values(self, labels):
        y = np.where(X[:, 1] > 0, *labels)
        found = classifier(epochs=40).fit(X, y).predict(X)
        assert found.dtype == y.dtype
        assert (found == y).mean() > 0.8

    def test_several_targets_have_the_shape_they_were_given_in(self):
        both = np.column_stack([Y, -X[:, 1]])
        model = regressor().fit(X, both)
        mean, std = model.predict(X[:7], return_std=True)
        assert mean.shape == std.shape == (7, 2)
        assert model.score(X, both) > 0.8
        assert model.predict_quantiles(X[:7], [0.1, 0.9, 0.5]).shape == (7, 2, 3)
        assert all(end.shape == (7, 2) for end in model.calibrate(X, both).predict_interval(X[:7]))
        assert regressor(epochs=2).fit(X, Y[:, None]).predict(X[:7]).shape == (7, 1)

    def test_whole_targets_are_numbers_for_a_regressor(self):
        model = regressor().fit(X, np.round(10 * X[:, 0]).astype(int))
        assert model.predict(X).dtype == np.float64
        assert len(np.unique(model.predict(X))) == 60


class TestCalibration:
    def test_intervals_hold_what_they_promise_even_if_the_ensemble_is_wrong(self):
        covered = []
        for seed in (1, 2, 3):
            draw = np.random.default_rng(seed)
            x, noise = draw.normal(size=(900, 1)), draw.standard_t(2, size=900)
            y = x[:, 0] + noise
            model = regressor(epochs=1, validation_fraction=None).fit(x[:100], 9 * y[:100])
            model.calibrate(x[100:500], y[100:500])
            for level in (0.5, 0.9):
                low, high = model.predict_interval(x[500:], level=level)
                covered.append(((low <= y[500:]) & (y[500:] <= high)).mean() - level)
        assert abs(np.mean(covered[::2])) < 0.07  # 3.5 deviations of what three times 400 rows and 400 more can tell
        assert abs(np.mean(covered[1::2])) < 0.04
        before = high - low
        fresh = model.fit(x[:100], y[:100]).predict_interval(x[500:], level=0.9)
        assert not np.allclose(before, fresh[1] - fresh[0])  # a new fit knows nothing of it

    def test_sets_hold_what_they_promise(self):
        draw = np.random.default_rng(1)
        x = draw.normal(size=(2500, 2))
        y = np.array(["a", "b", "c"])[np.digitize(x[:, 0] + draw.normal(size=2500), [-0.5, 0.5])]
        model = classifier(epochs=2, validation_fraction=None).fit(x[:100], y[:100])
        sets = model.calibrate(x[100:1100], y[100:1100]).predict_set(x[1100:], level=0.8)
        right = sets[np.arange(1400), np.searchsorted(model.classes_, y[1100:])]
        assert sets.shape == (1400, 3)
        assert abs(right.mean() - 0.8) < 0.05

    def test_targets_of_another_shape_are_refused(self, fitted):
        with pytest.raises(ValueError, match=r"y has shape \(60, 2\), and predictions \(60, 1\)"):
            fitted.calibrate(X, np.column_stack([Y, Y]))

    def test_sets_need_it(self, classed):
        with pytest.raises(ValueError, match="needs calibrate"):
            classed.predict_set(X)


class TestTables:
    def test_every_kind_of_column_is_read(self, frame):
        x = frame.drop(columns="price")
        model = regressor().fit(x, frame["price"])
        read = {row["column"]: row["read_as"] for row in model.ensemble_.table.describe()}
        assert read == {
            "rooms": "number", "town": "category", "floor": "category", "size": "category", "sold": "date", "garden": "flag",
            "level": "number",
        }  # fmt: skip
        assert model.feature_names_in_.tolist() == list(x.columns)
        assert model.score(x, frame["price"]) > 0.9
        gone = x.assign(town=x["town"].where(x["rooms"] > 1), level=x["level"].mask(x["garden"]))
        with pytest.warns(UserWarning, match="training did not have"):
            assert np.isfinite(model.predict(gone)).all()

    def test_other_or_unordered_columns_are_refused(self, frame):
        x = frame[["rooms", "town"]]
        model = regressor(epochs=2).fit(x, frame["price"])
        with pytest.raises(ValueError, match="should match those that were passed during fit"):
            model.predict(frame[["town", "rooms"]])
        with pytest.raises(ValueError, match="now missing"):
            model.predict(frame[["rooms"]])

    def test_text_in_arrays_is_read_too(self, frame):
        x = frame[["town", "size"]].astype(str).to_numpy()
        for given in (x, x.tolist(), x.astype(object)):
            assert regressor().fit(given, frame["price"]).score(given, frame["price"]) > 0.9

    def test_missing_numbers_of_arrays_are_marked(self):
        holes = np.where(DRAW.random(X.shape) < 0.2, np.nan, X)
        model = regressor().fit(holes, Y)
        assert model.ensemble_.table.width == 6
        assert model.score(holes, Y) > 0.5
        assert np.isfinite(model.predict(np.full((1, 3), np.nan))).all()  # without a warning

    def test_missing_numbers_that_training_did_not_have_are_said_once(self, fitted):
        gone = X[:6].copy()
        gone[1, 0] = gone[4, :2] = np.nan
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        model = regressor(epochs=2).fit(frame, Y)
        said = r"^X: columns 'x0', 'x1' have 3 cell\(s\) without a value \(rows 1, 4\), which training did not have; they are read as the median"
        with pytest.warns(UserWarning, match=said) as heard:
            fitted.predict(gone)
        assert len(heard) == 1
        with pytest.warns(UserWarning, match=r"^X: column 'b' has 1 cell\(s\) without a value \(row 0\)"):
            model.predict(frame.assign(b=frame["b"].where(frame.index > 0)))

    def test_rows_of_frames_are_counted_as_frames_do(self):
        frame = pd.DataFrame({"a": X[:, 0], "town": WORDS})
        model = regressor(epochs=2).fit(frame, Y)
        with pytest.warns(UserWarning, match=r"'a' has 1 cell\(s\) without a value \(row 3\)"):
            model.predict(frame.assign(a=frame["a"].where(frame.index != 3)))

    def test_complex_numbers_are_refused(self):
        with pytest.raises(ValueError, match="Complex data not supported"):
            regressor().fit(X + 1j, Y)

    @pytest.mark.parametrize("cells", [[(1, 2), 3], [{"k": 1}, "x"], [[1], None]])
    def test_columns_of_structures_are_left_out_and_that_is_said(self, cells):
        frame = pd.DataFrame({"a": X[:, 0], "odd": pd.Series(cells * 30, dtype=object)})
        order = DRAW.permutation(60)
        with pytest.warns(UserWarning, match="X: column 'odd'"):
            one, other = (regressor(epochs=2).fit(frame.iloc[rows], Y[rows]) for rows in (np.arange(60), order))
        assert one.ensemble_.table.describe()[1]["read_as"] == "left out"
        assert np.array_equal(one.predict(frame), other.predict(frame))

    def test_arrays_and_frames_of_numbers_give_the_same(self, fitted):
        names = pd.DataFrame(X, columns=["a", "b", "c"])
        assert np.array_equal(regressor().fit(names, pd.Series(Y)).predict(names), fitted.predict(X))

    def test_a_frame_with_nothing_to_learn_from_is_refused(self):
        notes = pd.DataFrame({"note": [f"a long sentence about thing {i} here" for i in range(60)]})
        with pytest.raises(ValueError, match="X has no column to learn from, as all are left out: 'note'"):
            regressor().fit(notes, Y)
        with pytest.raises(ValueError, match="every cell is without a value"):
            regressor().fit(np.full((60, 1), np.nan), Y)

    def test_spans_of_time_are_numbers(self):
        spans = pd.DataFrame({"wait": pd.to_timedelta(X[:, 0], unit="D"), "town": WORDS})
        model = regressor(epochs=2).fit(spans, Y)
        assert model.ensemble_.table.describe()[0]["read_as"] == "number"
        assert np.isfinite(model.predict(spans)).all()


class TestArrays:
    @pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, np.uint8, bool])
    def test_types_of_numbers(self, kind):
        x = (10 * np.abs(X)).astype(kind)
        found = regressor(epochs=3).fit(x, Y).predict(x)
        assert np.array_equal(found, regressor(epochs=3).fit(x.astype(float), Y).predict(x.astype(float)))

    def test_memory_of_any_order_that_may_not_be_written(self, fitted, tmp_path):
        np.save(tmp_path / "x.npy", np.repeat(X, 2, 1))
        x = np.load(tmp_path / "x.npy", mmap_mode="r")[:, ::2]
        y = np.repeat(Y, 2)[::2]
        y.flags.writeable = False
        assert np.array_equal(regressor().fit(x, y).predict(x), fitted.predict(X))

    def test_sparse_ones_are_refused_in_scikit_learns_words(self):
        with pytest.raises(TypeError, match="Sparse data was passed"):
            regressor().fit(sparse.csr_array(X), Y)

    def test_what_is_not_finite_is_refused(self):
        wrong = X.copy()
        wrong[3, 1] = np.inf
        with pytest.raises(ValueError, match="infinity"):
            regressor().fit(wrong, Y)
        with pytest.raises(ValueError, match="y contains NaN"):
            regressor().fit(X, np.where(X[:, 0] > 0, np.nan, Y))
        wrong[3, 1] = 1e200
        with pytest.raises(ValueError, match="at most 1e\\+30"):
            regressor().fit(wrong, Y)

    @pytest.mark.parametrize(
        ("method", "rows"), [("auto", 1), ("auto", 10), ("packed", 2), ("snapshot", 1), ("mimo", 10)]
    )
    def test_few_rows_of_one_feature(self, rows, method):
        model = regressor(method=method).fit(X[:rows, :1], Y[:rows])
        mean, std = model.predict(X[:, :1], return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()

    def test_nothing_to_tell_apart(self):
        same = np.ones((12, 2))
        model = regressor().fit(same, Y[:12])
        assert abs(model.predict(same)[0] - Y[:12].mean()) < Y[:12].std()
        assert np.allclose(regressor().fit(X, np.full(60, 5.0)).predict(X), 5.0, atol=0.1)

    def test_a_single_class_is_always_predicted(self):
        model = classifier().fit(X, np.full(60, "only"))
        assert model.predict(X).tolist() == ["only"] * 60
        assert np.array_equal(model.predict_proba(X), np.ones((60, 1)))
        assert np.allclose(model.predict_uncertainty(X).total, 0, atol=0.1)


class TestWeights:
    @pytest.mark.slow
    @pytest.mark.parametrize("make", [regressor, classifier])
    def test_whole_ones_are_rows_repeated_to_the_last_bit(self, make):
        y = WORDS if make is classifier else Y
        times = DRAW.integers(0, 4, 60)
        again = np.repeat(np.arange(60), times)[: 99 if times.sum() > 99 else None]
        times = np.bincount(again, minlength=60)
        shuffled = DRAW.permutation(again)
        weighted, repeated = make().fit(X, y, sample_weight=times), make().fit(X[shuffled], y[shuffled])
        assert np.array_equal(weighted.predict(X), repeated.predict(X))

    def test_zero_is_a_row_that_is_not_there_even_where_rows_are_held_out(self):
        x = DRAW.normal(size=(200, 2))
        y, kept = x[:, 0], DRAW.random(200) < 0.8
        weights = np.where(kept, 0.5 + DRAW.random(200), 0)
        one = regressor(epochs=2).fit(x, y, sample_weight=weights)
        other = regressor(epochs=2).fit(x[kept], y[kept], sample_weight=weights[kept])
        assert np.array_equal(one.predict(x), other.predict(x))

    @pytest.mark.parametrize("make", [regressor, classifier])
    @pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, list])
    def test_what_stands_in_a_row_of_weight_zero_does_not_matter(self, make, kind):
        y = (WORDS if make is classifier else Y).astype(object)
        x, weights = X.copy(), np.repeat([0.0, 1.0], [2, 58])
        x[0], x[1], y[0], y[1] = np.inf, 1e200, None, np.nan
        one = make(epochs=2).fit(kind(x), kind(y) if kind is list else y, sample_weight=weights)
        other = make(epochs=2).fit(kind(X[2:]), (WORDS if make is classifier else Y)[2:])
        assert np.array_equal(one.predict(kind(X)), other.predict(kind(X)))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            make(epochs=2).fit(x, y[:-1], sample_weight=weights)

    def test_heavy_rows_pull_predictions_to_them(self):
        x, y = np.zeros((200, 1)), np.repeat([0.0, 1.0], 100)
        model = regressor().fit(x, y, sample_weight=np.repeat([1.0, 9.5], 100))
        assert 0.8 < model.predict([[0.0]])[0] < 1.0

    def test_balanced_classes_are_as_heavy_as_each_other(self):
        draw = np.random.default_rng(3)
        x = draw.normal(size=(300, 1))
        y = np.where(x[:, 0] + draw.normal(size=300) > 1.8, "rare", "usual")
        plain, balanced = (classifier(class_weight=w, epochs=4).fit(x, y) for w in (None, "balanced"))
        recall = [(m.predict(x) == y)[y == "rare"].mean() for m in (plain, balanced)]
        assert recall[0] < 0.5 < 0.65 < recall[1]
        heavy = classifier(class_weight={"rare": 1e9, "usual": 1}, epochs=60).fit(x[:99], y[:99])
        among = x[:, 0] > x[:99][y[:99] == "rare"].min()  # beyond it, nothing is seen but weights of next to nothing
        assert (heavy.predict(x[among]) == "rare").all()

    def test_wrong_ones_are_refused(self):
        with pytest.raises(ValueError, match="numbers of 0 or more"):
            classifier(class_weight={"up": -1}).fit(X, WORDS)
        for wrong, said in ((-np.ones(60), "Negative"), (np.ones((60, 2)), "1D array"), (np.zeros(60), "(?i)sample")):
            with pytest.raises(ValueError, match=said):
                regressor().fit(X, Y, sample_weight=wrong)


class TestHoldingOut:
    def test_rows_of_a_group_stay_together(self, monkeypatch):
        from choral.tables import fit as preparing

        x, groups = DRAW.normal(size=(200, 1)), np.repeat(np.arange(20), 10)
        seen = {}
        monkeypatch.setattr(preparing, "train", lambda build, data, recipe, **o: seen.update(o, data=data))
        y = groups.astype(float)
        regressor().fit(x, y, groups=[f"g{g}" for g in groups])
        (kept, held) = seen["data"][1], seen["validation"][1]
        assert len(kept) + len(held) == 200
        assert not set(kept) & set(held)
        assert len(held) == 40

    @pytest.mark.full
    def test_auto_is_what_fit_table_does(self):
        x = pd.DataFrame(DRAW.normal(size=(110, 2)), columns=["a", "b"])
        y = pd.Series(x["a"] > 0, name="y").map({True: "yes", False: "no"})
        model = EnsembleClassifier(random_state=0).fit(x, y)
        table = choral.fit_table(x.assign(y=y), "y", progress=False)
        for found in (model.ensemble_, table):
            assert [one.split(",")[0] for one in found.info["auto"]["tried"]] == ["deep_ensemble", "periodic", "linear"]
            assert found.info["out_of_fold"]["rows"] == 110

    @pytest.mark.full
    def test_own_rows_take_the_place_of_folds(self):
        x = pd.DataFrame(DRAW.normal(size=(110, 2)), columns=["a", "b"])
        own = EnsembleClassifier(random_state=0).fit(x[:80], x["a"][:80] > 0, X_val=x[80:], y_val=x["a"][80:] > 0)
        assert "out_of_fold" not in own.ensemble_.info

    def test_own_rows_say_when_to_stop(self):
        x = DRAW.normal(size=(150, 2))
        model = regressor(epochs=900).fit(x[:120], x[:120, 0], X_val=x[120:], y_val=x[120:, 0])
        assert model.ensemble_.info["stopped"]
        assert model.score(x, x[:, 0]) > 0.8
        with pytest.raises(ValueError, match="y_val is missing; give X_val and y_val"):
            regressor().fit(x, x[:, 0], X_val=x)
        y = np.where(x[:, 0] > 0, "a", "b")
        with pytest.raises(ValueError, match=r"y_val holds 'c',.*'a', 'b'"):
            classifier().fit(x, y, X_val=x[:3], y_val=["a", "b", "c"])

    @pytest.mark.parametrize(
        ("x", "y", "said"),
        [
            (X[:, :2], Y, "has 2 features, but EnsembleRegressor is expecting 3"),
            (np.full((60, 3), np.inf), Y, "Input X_val contains infinity"),
            (X * 1e200, Y, r"X_val: column 'x0' holds .*; numbers must be finite and at most"),
            (X[:0], Y[:0], "Found array with 0 sample"),
            (X[0], Y, "Expected 2D array, got 1D"),
            (X, Y * np.nan, "Input y_val contains NaN"),
            (X, Y[:-1], r"inconsistent numbers of samples: \[60, 59\]"),
            (X, np.column_stack([Y, Y]), r"y_val has shape \(60, 2\), and y \(60,\)"),
            (X, pd.date_range("2023-01-01", periods=60), "y_val holds spans of time or dates"),
        ],
    )
    def test_errors_name_the_rows_they_are_about(self, x, y, said):
        with pytest.raises(ValueError, match=said):
            regressor(epochs=2).fit(X, Y, X_val=x, y_val=y)

    def test_cells_of_own_rows_are_named_too(self):
        frame = pd.DataFrame({"a": X[:, 0], "town": WORDS})
        with pytest.raises(ValueError, match=r"X_val: column 'a'.*0, 1"):
            regressor(epochs=2).fit(frame, Y, X_val=frame.assign(a=np.inf), y_val=Y)
        with pytest.warns(UserWarning, match="X_val: column 'x0' has 1 cell"):
            regressor(epochs=2).fit(X, Y, X_val=[[np.nan, 0.0, 0.0]], y_val=[1.0])

    def test_classes_of_another_type_are_told_apart(self):
        y = (X[:, 0] > 0).astype(int)
        with pytest.raises(ValueError, match=r"y_val holds '0',.*0, 1"):
            classifier(epochs=2).fit(X, y, X_val=X, y_val=y.astype(str))
        with pytest.raises(ValueError, match=r"y holds 0,.*'0', '1'"):
            classifier(epochs=2).fit(X, y.astype(str)).calibrate(X, y)
        with pytest.raises(ValueError, match="y should be a 1d array"):
            classifier(epochs=2).fit(X, y, X_val=X, y_val=np.column_stack([y, y]))

    @pytest.mark.parametrize(("share", "held"), [(0.001, 0), (0.999, 120)])
    def test_a_part_that_is_none_or_all_is_refused(self, share, held):
        x = DRAW.normal(size=(120, 2))
        said = f"validation is {share}, which would hold out {held} of 120 points"
        with pytest.raises(ValueError, match=said):
            regressor(validation_fraction=share).fit(x, x[:, 0])


class TestTools:
    def test_a_search_over_parameters_through_a_pipeline(self):
        frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(town=np.where(X[:, 0] > 0, "Ulm", "Bonn"))
        columns = ColumnTransformer(
            [("numbers", StandardScaler(), ["a", "b", "c"]), ("words", OneHotEncoder(), ["town"])]
        )
        search = GridSearchCV(
            make_pipeline(columns, regressor()), {"ensembleregressor__epochs": [1, 60]}, cv=2, refit=True
        ).fit(frame, Y)
        assert search.best_params_ == {"ensembleregressor__epochs": 60}
        assert search.score(frame, Y) > 0.8

    def test_frames_between_the_steps(self):
        pipe = make_pipeline(StandardScaler(), regressor(epochs=2)).set_output(transform="pandas")
        pipe.fit(pd.DataFrame(X, columns=["a", "b", "c"]), Y)
        assert pipe[-1].feature_names_in_.tolist() == ["a", "b", "c"]

    @pytest.mark.full
    def test_two_processes_give_what_one_does(self, fitted):
        model = classifier(epochs=20)
        one, two = (cross_val_predict(model, X, WORDS, cv=2, n_jobs=n, method="predict_proba") for n in (1, 2))
        assert np.array_equal(one, two)
        asked = Parallel(n_jobs=2)(delayed(fitted.predict)(X) for _ in range(2))  # carried there in a pickle
        assert all(np.array_equal(part, fitted.predict(X)) for part in asked)

    def test_weights_are_routed(self):
        import sklearn

        with sklearn.config_context(enable_metadata_routing=True):
            model = regressor(epochs=2).set_fit_request(sample_weight=True)
            found = cross_val_predict(model, X, Y, cv=2, params={"sample_weight": X[:, 0] ** 2})
        assert found.shape == (60,)

    def test_inside_other_estimators(self):
        vote = VotingRegressor([("a", regressor(epochs=5)), ("b", regressor(epochs=5, random_state=1))]).fit(X, Y)
        parts = [m.predict(X) for m in vote.estimators_]
        assert not np.allclose(*parts)
        assert np.allclose(vote.predict(X), np.mean(parts, 0))
        assert TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp).fit(X, Y).score(X, Y) > 0.8

    def test_a_copy_knows_only_the_parameters(self, fitted):
        twin = clone(fitted)
        assert twin.get_params() == fitted.get_params()
        assert not hasattr(twin, "ensemble_")
        assert (
            clone(EnsembleRegressor(choral.recipes.packed(budget=3), random_state=0)).fit(X, Y).ensemble_.recipe.epochs
            == 3
        )

    def test_two_threads_may_ask_at_once(self, fitted):
        whole, found = fitted.predict(X), {}

        def ask(i):
            found[i] = [fitted.predict(X[i::4]) for _ in range(5)]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert all(np.allclose(part, whole[i::4], rtol=1e-12) for i in range(4) for part in found[i])

    def test_the_same_number_gives_the_same_ensemble(self, fitted):
        assert np.array_equal(regressor().fit(X, Y).predict(X), fitted.predict(X))
        order = DRAW.permutation(60)
        assert np.array_equal(regressor().fit(X[order], Y[order]).predict(X), fitted.predict(X))
        assert not np.allclose(regressor(random_state=1).fit(X, Y).predict(X), fitted.predict(X))
        drawn = np.random.RandomState(0)
        one, two = (regressor(random_state=drawn, epochs=2).fit(X, Y).predict(X) for _ in range(2))
        assert not np.array_equal(one, two)


class Strict(pickle.Unpickler):
    """Knows no names but those that scikit-learn's estimators need."""

    def find_class(self, module, name):
        allowed = {
            ("choral.sklearn.estimators", "EnsembleRegressor"),
            ("choral.sklearn.estimators", "EnsembleClassifier"),
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


class TestPickles:
    def test_they_name_nothing_but_the_estimator(self, fitted, classed):
        for model in (clone(fitted).fit(X, Y).calibrate(X, Y), classed):
            data = pickle.dumps(model, protocol=5)
            twin = Strict(io.BytesIO(data)).load()
            assert np.array_equal(twin.predict(X), model.predict(X))
            assert twin.get_params() == model.get_params()
        frame = pd.DataFrame({"town": WORDS, "b": X[:, 0]})
        model = regressor(epochs=2).fit(frame, Y)
        twin = Strict(io.BytesIO(pickle.dumps(model))).load()
        assert twin.feature_names_in_.tolist() == ["town", "b"]
        assert np.array_equal(twin.predict(frame), model.predict(frame))

    @pytest.mark.full
    def test_members_of_several_methods_are_carried_too(self):
        x = DRAW.normal(size=(130, 2))
        model = EnsembleRegressor(random_state=0).fit(x, x[:, 0])
        assert model.ensemble_.recipe.name == "auto"
        assert np.array_equal(Strict(io.BytesIO(pickle.dumps(model))).load().predict(x), model.predict(x))

    def test_damaged_bytes_are_refused(self, fitted):
        state = fitted.__getstate__()
        data = bytearray(state["ensemble_"]["bytes"])
        data[len(data) // 2] ^= 1
        with pytest.raises(choral.ChoralError, match="the pickled estimator"):
            EnsembleRegressor().__setstate__(state | {"ensemble_": {"choral": "ensemble", "bytes": bytes(data)}})


class TestWishes:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"method": "pakced"}, "there is no method 'pakced'.*Did you mean 'packed'"),
            ({"n_estimators": 0}, "n_estimators is 0; give a whole number of 1 or more"),
            ({"method": "single", "n_estimators": 3}, "single trains one network"),
            ({"epochs": 2.5}, "epochs is 2.5"),
            ({"random_state": "zero"}, "'zero' cannot be used to seed"),
            ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
            ({"time_limit": -1}, "time_limit"),
            ({"device": "gpu"}, "device"),
            ({"method": choral.recipes.packed(budget=2), "epochs": 3}, "its own members and epochs"),
        ],
    )
    def test_wrong_ones_are_refused_by_fit(self, options, said):
        with pytest.raises(ValueError, match=said):
            regressor(**options).fit(X, Y)

    def test_numbers_of_numpy_are_numbers(self):
        wide = DRAW.normal(size=(120, 2))
        options = {"n_estimators": 2, "epochs": 4, "time_limit": 60, "validation_fraction": 0.25, "random_state": 0}
        typed = {name: np.float32(v) if isinstance(v, float) else np.int64(v) for name, v in options.items()}
        one, other = (regressor(**some).fit(wide, wide[:, 0]) for some in (options, typed))
        assert np.array_equal(one.predict(wide), other.predict(wide))
        assert other.ensemble_.members == 2

    @pytest.mark.parametrize("options", [{}, {"method": "deep_ensemble", "n_estimators": 2}])
    def test_the_generator_of_torch_stays_as_it_was(self, options):
        before = torch.get_rng_state()
        regressor(**{"epochs": 4} | options).fit(X, Y).predict(X)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.slow
    def test_it_stays_so_where_methods_are_tried(self):
        x = DRAW.normal(size=(120, 2))
        before = torch.get_rng_state()
        EnsembleRegressor(random_state=0, time_limit=2).fit(x, x[:, 0])
        assert torch.equal(before, torch.get_rng_state())

    def test_members_are_as_many_as_asked(self):
        assert regressor(n_estimators=3, epochs=4).fit(X, Y).ensemble_.members == 3
        assert (
            EnsembleRegressor("deep_ensemble", n_estimators=2, epochs=4, random_state=0).fit(X, Y).ensemble_.members
            == 2
        )

    def test_nothing_is_printed_and_no_warning_given(self, capsys):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", ".*(budget is below|rows no better than)")  # few steps on purpose
            regressor(epochs=2).fit(X, Y).predict(X)
        assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("y", [pd.to_timedelta(np.arange(20), unit="s"), pd.date_range("2023-01-01", periods=20)])
def test_spans_and_dates_are_no_targets(y):
    for given in (y, pd.Series(y), y.to_numpy()):
        with pytest.raises(ValueError, match="y holds spans of time or dates; give numbers"):
            EnsembleRegressor(epochs=4).fit(np.arange(20.0)[:, None], given)


@pytest.mark.parametrize("first", [np.datetime64("NaT"), np.timedelta64("NaT")])
@pytest.mark.parametrize("rest", [pd.date_range("2023-01-01", periods=19), np.arange(19.0)])
def test_times_that_are_missing_are_no_targets_either(first, rest):
    for y in ([first, *rest], np.array([first, *rest], dtype=object)):
        with pytest.raises(ValueError, match="y holds spans of time or dates; give numbers"):
            EnsembleRegressor(epochs=4).fit(np.arange(20.0)[:, None], y)


def test_the_package_does_not_hide_scikit_learn():
    import sklearn

    assert choral.sklearn is not sklearn
    assert choral.sklearn.EnsembleRegressor is EnsembleRegressor
