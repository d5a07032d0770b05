"""What knowing the next departure would be worth: U by forward time, among them one that is right.

`python papers/bftrainer/forward.py` (four minutes of a core). The paper (section 3.4) expects an
estimate from the state of the queue to help where T_fwd varies. No estimate can know more than when
the next node leaves.
"""

from cases import case

RULES = (120.0, "learned", "foretold")


def main() -> None:
    """Print U for each forward time, at the paper's costs of rescaling and at five times those."""
    print(f"{'costs':>6}  {'weeks':>5}  " + "  ".join(f"{rule!s:>9}" for rule in RULES))
    for cost in (1.0, 5.0):
        for week in (1, 2):
            found = [
                case({"rule": rule, "cost": cost, "week": week, "completions": True})["U"]
                for rule in RULES
            ]
            print(f"{cost:6g}  {week:5d}  " + "  ".join(f"{u:9.4f}" for u in found))


if __name__ == "__main__":
    main()
