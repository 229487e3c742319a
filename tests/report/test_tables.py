from choral.report.markup import DASH, best_of, element, number, pairs, shown, table, written

ROWS = [{"method": "a<b>", "nll": 0.5, "accuracy": 0.9}, {"method": "c", "nll": 0.25, "accuracy": None}]


def text_of(made):
    return written(element("div", made))


def test_numbers_carry_their_full_value():
    assert written(number(0.123456789)) == '<td data-value="0.123456789">0.1235</td>'
    assert written(number(None)) == "<td></td>"
    for wrong in (float("nan"), float("inf"), "0.5", [], {}, True, 10**400):
        assert written(number(wrong)) == f"<td>{DASH}</td>"
    assert shown(-1234.5) == "-1,234"
    assert shown(0.0) == "0.0000"
    assert shown(3.2e15) == "3.2 P"


def test_the_best_is_marked_by_the_direction_of_its_measure():
    assert best_of(ROWS, "nll") == 0.25
    assert best_of([{"accuracy": 0.1}, {"accuracy": 0.2}], "accuracy") == 0.2
    assert best_of(ROWS, "accuracy") is None  # one value is not a contest
    assert best_of([{"epochs": 1}, {"epochs": 2}], "epochs") is None
    text = text_of(table(["nll", "accuracy"], ROWS, caption="x"))
    assert '<td class="best" data-value="0.25">' in text
    assert text.count("best") == 1


def test_names_are_text_never_markup():
    assert "<b>" not in text_of(table(["nll"], ROWS, caption="x"))
    assert "&lt;b&gt;" in text_of(table(["nll"], ROWS, caption="x"))
    assert "<i>" not in text_of(pairs({"data": "<i>"}, caption="x"))


def test_shades_run_from_the_best_to_the_worst():
    rows = [{"method": m, "auroc": v} for m, v in (("a", 0.5), ("b", 0.75), ("c", 1.0))]
    for better, expected in (("higher", ["1.00", "0.50", "0.00"]), ("lower", ["0.00", "0.50", "1.00"])):
        text = text_of(table(["auroc"], rows, caption="x", heat=better))
        assert [part[:4] for part in text.split("--heat: ")[1:]] == expected
