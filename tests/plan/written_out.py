"""Every phase of a plan that is no combinator, with its place, in the order of a run."""

from choral.plan.walk import Visitor, walk


def written_out(plan):
    found = []

    def act(phase, place, carried):
        found.append((phase, place))

    walk(plan, None, Visitor(start=act, change=act, train=act, collect=act))
    return found
