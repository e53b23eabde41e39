#!/bin/bash
# A step over several lines, and one within a line.
#SBATCH --job-name=steps --ntasks=2 --gpus=2 --mem-per-gpu=40G
cd "$SLURM_SUBMIT_DIR"
srun --ntasks=2 \
  --cpu-bind=none \
  -c 4 python train.py \
  --epochs 3
if srun hostname; then echo done; fi
