"""A script with Megatron's flags. Run:

python examples/megatron_style.py --torch-profile --torch-profile-ranks 0 --torch-profile-active 2 \
    --torch-profile-with-flops --tensorboard-dir tb
"""

import argparse

import torch

import rankscope


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train-iters", type=int, default=8)
    parser.add_argument("--hidden-size", type=int, default=64)
    rankscope.add_profile_arguments(parser)
    args = parser.parse_args()

    layer = torch.nn.TransformerEncoderLayer(args.hidden_size, nhead=4, batch_first=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with rankscope.profiler_from_args(args, model=layer) as prof:
        for _ in range(args.train_iters):
            layer(torch.randn(2, 16, args.hidden_size)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    print("trained")


if __name__ == "__main__":
    main()
