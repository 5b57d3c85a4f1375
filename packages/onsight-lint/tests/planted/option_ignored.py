"""The seed that the user gives is not used."""

import argparse

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)  # expect: option-never-read
    args = parser.parse_args()
    torch.manual_seed(0)
    print(torch.randn(args.rows))


if __name__ == "__main__":
    main()

# fixed:     seed = args.seed
