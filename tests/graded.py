"""What the tests of the exercises' checks share."""

import re


def assert_right(check, answers):
    """Each of the answers, in two words at least, has all points."""
    assert len(answers) >= 2
    for answer in answers:
        score = check(answer)
        assert score == score.out_of and score.wrong is None, score


def assert_wrong(check, answer, points, hint):
    """An answer has so many points, fewer than all, and what is said of it, got and hint, fits."""
    score = check(answer)
    text = str(score)
    assert score == points < score.out_of, text
    assert re.search(hint, text[text.index("    "):], re.I | re.S), text


def table(wrong):
    """Rows for pytest.mark.parametrize: (check's name, answer, points, hint), and at least six for each check."""
    assert all(len(rows) >= 6 for rows in wrong.values())
    return [(check, *row) for check, rows in wrong.items() for row in rows]
