# The stack of ../cloudformation.yaml as a module: the same resources and parameters as trainyard init aws.
#
#   module "trainyard" {
#     source  = "./infrastructure/terraform"
#     subject = ["repo:OWNER/REPO:environment:images"]
#   }
#
# A variable that is null has the default of the template, which also says what each parameter takes.

terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.33"
    }
  }
}

variable "project_name" {
  description = "the CodeBuild project, the stack, and the beginning of the name of everything else"
  type        = string
  default     = "trainyard"
}

variable "ecr_repository" {
  description = "the ECR repository of the images; NAME-cache holds the layer cache"
  type        = string
  default     = null
}

variable "tag_mutability" {
  description = "IMMUTABLE: a tag always names the same image; IMMUTABLE_WITH_EXCLUSION: all but latest; MUTABLE: any may move"
  type        = string
  default     = null
}

variable "compute_type" {
  description = "the size of the build machine; SMALL has too little disk for a training image"
  type        = string
  default     = null
}

variable "timeout_minutes" {
  description = "the time limit of a build"
  type        = number
  default     = null
}

variable "log_days" {
  description = "how many days logs are kept"
  type        = number
  default     = null
}

variable "artifact_days" {
  description = "how many days the reports and records of builds are kept; 0 keeps them"
  type        = number
  default     = null
}

variable "kms_key" {
  description = "the ARN of a KMS key for buckets, logs, artifacts and new repositories; without it AWS's own keys"
  type        = string
  default     = null
}

variable "vpc" {
  description = "the VPC in which builds run; it needs a NAT or endpoints for ECR, S3, logs and the package index"
  type        = string
  default     = null
}

variable "subnets" {
  description = "the private subnets of the VPC, with commas between"
  type        = string
  default     = null
}

variable "security_groups" {
  description = "the security groups of builds in the VPC, with commas between"
  type        = string
  default     = null
}

variable "subject" {
  description = "the subjects of GitHub's jobs that may assume the role, such as repo:OWNER/REPO:environment:NAME"
  type        = list(string)
  default     = []
}

variable "role_starts_builds" {
  description = "whether GitHub's role may start builds, with overrides; if not, only pushes to the webhook repository do"
  type        = bool
  default     = null
}

variable "create_provider" {
  description = "make GitHub's OIDC provider; an account has one, and another stack may have made it"
  type        = bool
  default     = null
}

variable "cluster" {
  description = "the EKS cluster in which jobs of GitHub Actions start training"
  type        = string
  default     = null
}

variable "base_repository" {
  description = "ARNs of further ECR repositories with base images, also of other accounts"
  type        = list(string)
  default     = []
}

variable "webhook_repository" {
  description = "OWNER/REPO whose pushes to main or master build by themselves; CodeBuild must be connected to GitHub"
  type        = string
  default     = null
}

locals {
  parameters = {
    Project           = var.project_name
    Repository        = var.ecr_repository
    TagMutability     = var.tag_mutability
    ComputeType       = var.compute_type
    TimeoutMinutes    = var.timeout_minutes
    LogDays           = var.log_days
    ArtifactDays      = var.artifact_days
    KmsKey            = var.kms_key
    Vpc               = var.vpc
    Subnets           = var.subnets
    SecurityGroups    = var.security_groups
    Subjects          = join(",", var.subject)
    RoleStartsBuilds  = var.role_starts_builds
    CreateProvider    = var.create_provider
    Cluster           = var.cluster
    BaseRepositories  = join(",", var.base_repository)
    WebhookRepository = var.webhook_repository
  }
}

resource "aws_cloudformation_stack" "trainyard" {
  name          = var.project_name
  template_body = file("${path.module}/../cloudformation.yaml")
  capabilities  = ["CAPABILITY_NAMED_IAM"]
  parameters    = { for name, value in local.parameters : name => tostring(value) if value != null }
}

output "repository_uri" {
  description = "where images are pushed"
  value       = aws_cloudformation_stack.trainyard.outputs["RepositoryUri"]
}

output "project_name" {
  description = "for build_image.py"
  value       = var.project_name
}

output "source_bucket" {
  description = "for build_image.py"
  value       = aws_cloudformation_stack.trainyard.outputs["SourceBucket"]
}

output "github_role_arn" {
  description = "the variable TRAINYARD_IMAGE_ROLE of the repository on GitHub"
  value       = lookup(aws_cloudformation_stack.trainyard.outputs, "GitHubRoleArn", null)
}
