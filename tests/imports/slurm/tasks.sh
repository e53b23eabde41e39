#!/bin/bash
# A task for each GPU, in a container.
#SBATCH -N 2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --hold
#SBATCH --container-image=nvcr.example#nvidia/pytorch:25.01
#SBATCH --frobnicate=3
time srun -n 16 --mpi=pmix python train.py --rank $SLURM_PROCID
