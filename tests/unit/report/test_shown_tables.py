"""Tables on the console show names as they are."""

from comera_dist.report.tables import WIDTH, show_table

NAMES = ("c4[en]", "[/x]", "[red]a", "a:smile:b")


def test_brackets_and_colons_of_names_are_shown(capsys):
    show_table(["<[name]", "[/]"], [(name, name) for name in NAMES], WIDTH, "runs/[x] [/y]")
    text = capsys.readouterr().out
    assert [text.count(name) for name in NAMES] == [2] * len(NAMES)
    assert all(word in text for word in ("runs/[x] [/y]", "[name]", "[/] "))
