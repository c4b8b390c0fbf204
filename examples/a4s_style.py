"""A command line with a train command and --profiling, as A4S has. Run:

python examples/a4s_style.py train --profiling --prof_dir prof --prof_table
"""

import argparse

import torch

import rankscope


def train(args: argparse.Namespace) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv1d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(1)
    )
    model(torch.randn(1, 3, 32))
    optimizer = torch.optim.Adam(model.parameters())
    with rankscope.profiler_from_args(args, model=model, name="a4s") as prof:
        for _ in range(args.steps):
            model(torch.randn(4, 3, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    print("trained")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train")
    command.add_argument("--steps", type=int, default=8)
    rankscope.add_profile_arguments(command)
    command.set_defaults(run=train)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
