#!/bin/bash
# Two nodes of four GPUs, one launcher on each.
#SBATCH --job-name=gpt-small
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=1-12:00:00
#SBATCH --partition=gpu
#SBATCH --account=nlp
#SBATCH --qos=high
#SBATCH --output=%x-%j.out
#SBATCH --requeue
#SBATCH --mail-type=END
module load cuda/12.4
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --ntasks=2 --kill-on-bad-exit=1 torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 train.py --job $SLURM_JOB_ID
